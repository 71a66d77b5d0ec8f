"""``umbel publisher status | flush``."""

from __future__ import annotations

import click

from umbel.cli.answers import answer, say
from umbel.cli.errors import FAILED
from umbel.cli.frame import Frame, command, plain_group
from umbel.cli.words import count, duration


@plain_group()
def publisher() -> None:
    """Messages that wait because their broker was out of reach."""


@command()
def status(frame: Frame, as_json: bool) -> int:
    """What the backlog holds. Exit code 1 when messages wait in it."""
    app = frame.site
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
def flush(frame: Frame, timeout: float, as_json: bool) -> int:
    """Publish what a backlog on disk or in a database holds. Exit code 1 when some is left."""
    app = frame.site
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
