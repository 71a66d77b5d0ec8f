"""``umbel worker``: one worker process, or a parent of several."""

from __future__ import annotations

import os
from typing import Any

import click

from umbel.cli.command_context import CommandContext, command

LEVELS = click.Choice(["debug", "info", "warning", "error"])
FORMATS = click.Choice(["auto", "pretty", "json"])


class Address(click.ParamType[tuple[str, int]]):
    """``HOST:PORT``."""

    name = "HOST:PORT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        host, _, port = str(value).rpartition(":")
        if not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
            self.fail(f"{value!r:.80}: give an address such as 127.0.0.1:8081", param, ctx)
        return host.strip("[]") or "127.0.0.1", int(port)


@command()
@click.option("--queues", metavar="A,B", help="Which to serve; every queue of the tasks if not.")
@click.option("--processes", type=click.IntRange(1, 1000), default=1, help="How many to run.")
@click.option("--name", help="The worker's name; the host's if not.")
@click.option(
    "--index",
    type=click.IntRange(0, 999_999),
    help="Its place among the workers, 0 and up; the host's if it is called NAME-INDEX, else the"
    " lowest free one. Its name is NAME.INDEX then.",
)
@click.option("--of", type=int, hidden=True)
@click.option("--replica", type=int, hidden=True)
@click.option("--io", type=int, help="How many async def tasks run at once (100).")
@click.option("--cpu", type=int, help="How many def tasks run at once, in threads.")
@click.option(
    "--lease", type=float, help="Seconds without a heartbeat until others take over (10)."
)
@click.option(
    "--order",
    metavar="ORDER",
    help="Which queue is first: strict (as given), weighted, short-first, long-first, rare-first,"
    " saturation, or MODULE:FUNCTION.",
)
@click.option(
    "--weights", metavar="A=5,B=1", help="With --order weighted: how often each is first."
)
@click.option("--grace", type=float, help="Seconds for running tasks to finish when stopped (30).")
@click.option("--probe", type=Address(), help="Serve /livez, /readyz and /metrics there.")
@click.option("--listen", metavar="URL", help="Take jobs there too, from whoever calls directly.")
@click.option("--no-inbox", is_flag=True, help="Refuse commands and calls to this worker alone.")
@click.option("--no-signing", is_flag=True, help="Hear them unsigned, though there are keys.")
@click.option("--log-level", type=LEVELS, default="info", show_default=True)
@click.option("--log-format", type=FORMATS, default="auto", show_default=True)
@click.option("--no-uvloop", is_flag=True, help="Use asyncio's own event loop.")
def worker(
    frame: CommandContext,
    processes: int,
    log_level: str,
    log_format: str,
    as_json: bool,
    **chosen: Any,
) -> int:
    """Run tasks until told to stop.

    SIGTERM or Ctrl-C: fetch no more, let running tasks finish for --grace seconds, put the rest
    back into their queues. A second one: without the grace. SIGHUP, from a supervisor: the same,
    then begin again with the code as it is.

    With --processes each process has a name of its own (NAME.0, NAME.1 …) and, with --probe, a port
    of its own from PORT upwards; of N processes, --index I gives them the places I*N and up.

    With --listen umbel+tcp://127.0.0.1:5682 others reach the worker without a broker, as an actor:
    that address is their UMBEL_URL. With UMBEL_URL=sqlite:///:memory: the worker needs none either.
    """
    style = "json" if as_json else log_format
    if processes > 1 and chosen.get("listen"):
        raise click.UsageError("--listen: one process can have the address; leave --processes out")
    if processes > 1:
        from umbel.cli.fleet import run_fleet

        return run_fleet(frame.address, processes, style, log_level, chosen)
    from umbel.cli.working import work

    return work(frame, style, log_level, chosen, fleet=os.environ.pop("UMBEL_FLEET", ""))
