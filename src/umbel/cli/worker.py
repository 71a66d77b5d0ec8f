"""``umbel worker``: one worker process, or a parent of several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from umbel.cli.command_context import CommandContext, command

log_level_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    envvar="UMBEL_LOG_LEVEL",
    show_envvar=True,
    help="Least level of log lines.",
)
log_format_option = click.option(
    "--log-format",
    type=click.Choice(["auto", "pretty", "json"]),
    default="auto",
    show_default=True,
    envvar="UMBEL_LOG_FORMAT",
    show_envvar=True,
    help="Form of log lines; auto is pretty on a terminal and JSON elsewhere.",
)


class HostAndPort(click.ParamType[tuple[str, int]]):
    """``HOST:PORT``."""

    name = "HOST:PORT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        host, _, port = str(value).rpartition(":")
        if not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
            self.fail(f"{value!r:.80}: give an address such as 127.0.0.1:8081", param, ctx)
        return host.strip("[]") or "127.0.0.1", int(port)


def _option(name: str, *others: str, **settings: Any) -> Callable[[Any], Any]:
    """Return a flag that also has an environment variable, such as UMBEL_WORKER_QUEUES."""
    variable = f"umbel_worker_{name.removeprefix('--')}".replace("-", "_").upper()
    return click.option(name, *others, envvar=variable, show_envvar=True, **settings)


@command()
@_option(
    "--queues", "-Q", metavar="A,B", help="Queues to serve. Default: every queue of the tasks."
)
@_option(
    "--processes", type=click.IntRange(1, 1000), default=1, help="Number of worker processes (1)."
)
@_option("--name", help="Name of the worker. Default: the host's name.")
@_option(
    "--index",
    type=click.IntRange(0, 999_999),
    help="Index among the workers, 0 and up; the worker is then called NAME.INDEX. Default: the"
    " number at the end of a host name such as web-3, otherwise the lowest free index.",
)
@click.option("--of", type=int, hidden=True)
@click.option("--replica", type=int, hidden=True)
@_option("--io", type=int, help="Number of async def tasks that run at once (100).")
@_option("--cpu", "-c", type=int, help="Number of def tasks that run at once, in threads.")
@_option("--lease", type=float, help="Seconds without a heartbeat until others take the jobs (10).")
@_option(
    "--order",
    metavar="ORDER",
    help="Which queue comes first: strict (as given), weighted, short-first, long-first,"
    " rare-first, saturation, or MODULE:FUNCTION.",
)
@_option(
    "--weights",
    metavar="A=5,B=1",
    help="With --order weighted: how often each queue comes first.",
)
@_option("--grace", type=float, help="Seconds for running tasks to finish at a stop (30).")
@_option("--probe", type=HostAndPort(), help="Serve /livez, /readyz and /metrics at this address.")
@_option("--listen", metavar="URL", help="Also accept jobs directly from clients at this address.")
@_option("--no-inbox", is_flag=True, help="Reject messages that address this worker alone.")
@_option(
    "--no-signing", is_flag=True, help="Accept such messages unsigned, even if there are keys."
)
@click.option("--no-scheduler", is_flag=True, help="Leave the ticks of schedules to others.")
@log_level_option
@log_format_option
@_option("--no-uvloop", is_flag=True, help="Use asyncio's own event loop.")
def worker(
    context: CommandContext,
    processes: int,
    log_level: str,
    log_format: str,
    as_json: bool,
    **options: Any,
) -> int:
    """Run tasks until the worker is stopped.

    SIGTERM or Ctrl-C stops fetching, lets running tasks finish for --grace seconds, and puts the
    rest back into their queues. A second signal ends the grace at once. SIGHUP from a supervisor
    stops the worker in the same way and restarts it with the current code.

    With --processes, the processes are called NAME.0, NAME.1 and so on. With --probe, they serve
    PORT, PORT+1 and so on. With --index I, N processes have the indexes from I*N on.

    With --listen umbel+tcp://127.0.0.1:5682, clients send jobs to this worker without a broker.
    They use that address as their UMBEL_URL. With UMBEL_URL=sqlite:///:memory: the worker needs no
    broker either.

    A flag takes precedence over its environment variable.
    """
    style: Any = "json" if as_json else log_format
    if processes > 1 and options.get("listen"):
        raise click.UsageError("--listen: only one process can listen; leave out --processes.")
    if processes > 1:
        from umbel.processes.fleet import run_fleet

        return run_fleet(context.address, processes, style, log_level, options)
    from umbel.processes.worker_process import run_worker

    return run_worker(context.address, style, log_level, options)
