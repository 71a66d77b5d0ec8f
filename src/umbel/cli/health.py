"""``umbel health``: for people, scripts and container checks."""

from __future__ import annotations

from umbel.cli.answers import answer, say
from umbel.cli.command_context import CommandContext, command
from umbel.cli.errors import FAILED, UNREACHABLE


@command()
def health(frame: CommandContext, as_json: bool) -> int:
    """Say whether work can flow: the server answers, workers live, every queue is served.

    Exit code 0: it can. 1: something is wrong. 3: the server cannot be reached.
    """
    found = frame.ask(lambda operations: operations.health())
    if as_json:
        answer(found)
    else:
        say("healthy" if found.ok else "not healthy")
        for name, text in found.checks.items():
            say(f"  {name:8} {text}")
    if found.ok:
        return 0
    return FAILED if "workers" in found.checks else UNREACHABLE
