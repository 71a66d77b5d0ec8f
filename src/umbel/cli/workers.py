"""``umbel workers``."""

from __future__ import annotations

from umbel.cli.answers import answer, say, table
from umbel.cli.frame import Frame, command
from umbel.cli.words import duration

_HEAD = ("worker", "state", "running", "io", "cpu", "queues", "up", "last beat", "host", "pid")
_NUMBERS = ("running", "io", "cpu", "up", "last beat", "pid")


@command()
def workers(frame: Frame, as_json: bool) -> None:
    """Show the workers that live, as the store knows them."""
    found = frame.ask(lambda operations: operations.workers())
    if as_json:
        answer(found)
    elif not found:
        say("no worker lives; start one: umbel -A module:app worker")
    else:
        rows = [
            (
                one.name,
                one.state,
                one.running,
                one.io,
                one.cpu,
                ", ".join(one.queues),
                duration(one.uptime),
                f"{duration(one.silent)} ago",
                one.host,
                one.pid,
            )
            for one in found
        ]
        table(_HEAD, rows, right=_NUMBERS)
