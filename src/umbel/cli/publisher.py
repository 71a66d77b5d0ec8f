"""``umbel publisher``: a publisher that others share; and ``status | flush`` of the backlog."""

from __future__ import annotations

import click

from umbel.cli.answers import answer, say
from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.errors import FAILED
from umbel.cli.words import count, duration
from umbel.cli.worker import FORMATS, LEVELS

LISTEN = "umbel+tcp://127.0.0.1:5681"


@group()
@click.option("--listen", metavar="URL", default=LISTEN, show_default=True, help="Where to serve.")
@click.option("--log-level", type=LEVELS, default="info", show_default=True)
@click.option("--log-format", type=FORMATS, default="auto", show_default=True)
def publisher(
    frame: CommandContext, listen: str, log_level: str, log_format: str, as_json: bool
) -> int | None:
    """Publish for other processes, which hand over their messages here.

    They use this address as their UMBEL_URL and are answered when a message is durable: in the
    broker, or in this process's backlog while the broker is out of reach. With a command: look
    after the messages that wait in the backlog.
    """
    from umbel.cli.stationing import serve

    style = "json" if as_json else log_format
    return serve(frame, style, log_level, lambda app: app.publisher(listen))


@command()
def status(frame: CommandContext, as_json: bool) -> int:
    """What the backlog holds. Exit code 1 when messages wait in it."""
    app = frame.app_or_bare
    held = app.kept()
    if as_json:
        answer(held)
    elif held is None and app.settings.backlog == "none":
        say("there is no backlog: backlog is none")
    elif held is None:
        say("the backlog is in memory: each publishing process has its own, and logs its use")
    elif held.messages:
        age = duration(max(app.clock.now() - (held.oldest or 0.0), 0.0))
        waiting = f"{count(held.messages, 'message')} of at most {held.limit:,}"
        say(f"{waiting} in {held.kind}, the oldest for {age}")
    else:
        say(f"nothing waits in {held.kind}")
    return FAILED if held is not None and held.messages else 0


@command()
@click.option("--timeout", type=float, default=30.0, show_default=True, help="Seconds to try.")
def flush(frame: CommandContext, timeout: float, as_json: bool) -> int:
    """Publish what a backlog on disk or in a database holds. Exit code 1 when some is left."""
    app = frame.app_or_bare
    before = app.kept()
    if before is None:
        say("there is no backlog but in memory; nothing to publish from here")
        return 0
    left = app.flush(timeout)
    if as_json:
        answer({"published": before.messages - left, "left": left})
    else:
        say(f"{count(before.messages - left, 'message')} published, {left:,} left")
    return FAILED if left else 0


for _command in (status, flush):
    publisher.add_command(_command)
