"""``umbel publisher``: a publisher that processes share, and ``status | flush`` of the backlog."""

from __future__ import annotations

import click

from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.formatting import count, duration
from umbel.cli.output import print_json, print_line
from umbel.cli.worker import log_format_option, log_level_option
from umbel.processes.exit_codes import FAILED

LISTEN = "umbel+tcp://127.0.0.1:5681"


@group()
@click.option(
    "--listen", metavar="URL", default=LISTEN, show_default=True, help="Address to serve."
)
@log_level_option
@log_format_option
def publisher(
    context: CommandContext, listen: str, log_level: str, log_format: str, as_json: bool
) -> int | None:
    """Publish messages for other processes.

    They use this address as their UMBEL_URL. They get an answer when a message is durable: in the
    broker, or in this process's backlog while the broker cannot be reached. The commands below show
    or publish the messages in the backlog.
    """
    from umbel.processes.link_process import run_link_server

    style = "json" if as_json else log_format
    return run_link_server(context.address, style, log_level, lambda app: app.publisher(listen))


@command()
def status(context: CommandContext, as_json: bool) -> int:
    """Show what the backlog holds. The exit code is 1 if it holds messages."""
    app = context.app_or_bare
    backlog = app.backlog_status()
    if as_json:
        print_json(backlog)
    elif backlog is None and app.settings.backlog == "none":
        print_line("There is no backlog: the setting backlog is none.")
    elif backlog is None:
        print_line("The backlog is in memory: each publishing process has its own.")
    elif backlog.messages:
        age = duration(max(app.clock.now() - (backlog.oldest or 0.0), 0.0))
        waiting = f"{count(backlog.messages, 'message')} of at most {backlog.limit:,}"
        print_line(f"{waiting} in {backlog.kind}, the oldest for {age}")
    else:
        print_line(f"The backlog in {backlog.kind} is empty.")
    return FAILED if backlog is not None and backlog.messages else 0


@command()
@click.option(
    "--timeout", type=float, default=30.0, show_default=True, help="Seconds after which to give up."
)
def flush(context: CommandContext, timeout: float, as_json: bool) -> int:
    """Publish what a backlog on disk or in a database holds. The exit code is 1 if some is left."""
    app = context.app_or_bare
    before = app.backlog_status()
    if before is None:
        print_line("There is no backlog outside memory; nothing to publish from here.")
        return 0
    left = app.flush(timeout)
    if as_json:
        print_json({"published": before.messages - left, "left": left})
    else:
        print_line(f"{count(before.messages - left, 'message')} published, {left:,} left")
    return FAILED if left else 0


for _command in (status, flush):
    publisher.add_command(_command)
