"""``umbel router``: workers and publishers connect to it instead of the broker."""

from __future__ import annotations

import click

from umbel.cli.command_context import CommandContext, command
from umbel.cli.worker import FORMATS, LEVELS

LISTEN = "umbel+tcp://127.0.0.1:5680"


@command()
@click.option("--listen", metavar="URL", default=LISTEN, show_default=True, help="Where to serve.")
@click.option("--operate", is_flag=True, help="Let those who connect do what operators do, too.")
@click.option("--log-level", type=LEVELS, default="info", show_default=True)
@click.option("--log-format", type=FORMATS, default="auto", show_default=True)
@click.option("--no-uvloop", is_flag=True, help="Use asyncio's own event loop.")
def router(
    frame: CommandContext,
    listen: str,
    operate: bool,
    log_level: str,
    log_format: str,
    no_uvloop: bool,
    as_json: bool,
) -> int:
    """Serve workers and publishers that have no credentials of the broker or the database.

    They use this address as their UMBEL_URL. Other machines reach it at umbel://HOST:PORT with
    ?cafile=…&certfile=…&keyfile=…: both ends prove who they are. On this machine umbel+unix:///PATH
    and umbel+tcp://127.0.0.1:PORT serve, too. It may be stopped or die at any moment: those who
    use it go on when it is back.
    """
    from umbel.cli.stationing import serve

    style = "json" if as_json else log_format
    return serve(
        frame,
        style,
        log_level,
        lambda app: app.router(listen, operate=operate),
        uvloop=not no_uvloop,
    )
