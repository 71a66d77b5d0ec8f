"""``umbel router``: workers and publishers connect to it instead of to the broker."""

from __future__ import annotations

import click

from umbel.cli.command_context import CommandContext, command
from umbel.cli.worker import log_format_option, log_level_option

LISTEN = "umbel+tcp://127.0.0.1:5680"


@command()
@click.option(
    "--listen", metavar="URL", default=LISTEN, show_default=True, help="Address to serve."
)
@click.option("--operate", is_flag=True, help="Also allow operators' commands to those connected.")
@log_level_option
@log_format_option
@click.option("--no-uvloop", is_flag=True, help="Use asyncio's own event loop.")
def router(
    context: CommandContext,
    listen: str,
    operate: bool,
    log_level: str,
    log_format: str,
    no_uvloop: bool,
    as_json: bool,
) -> int:
    """Serve workers and publishers that have no credentials for the broker or the database.

    They use this address as their UMBEL_URL. Other machines connect to umbel://HOST:PORT with
    ?cafile=…&certfile=…&keyfile=…; both sides then prove their identity. On the same machine,
    umbel+unix:///PATH and umbel+tcp://127.0.0.1:PORT work, too. The router may be stopped or
    restarted at any time: workers and publishers continue when it is back.
    """
    from umbel.processes.link_process import run_link_server

    style = "json" if as_json else log_format
    return run_link_server(
        context.address,
        style,
        log_level,
        lambda app: app.router(listen, operate=operate),
        uvloop=not no_uvloop,
    )
