"""Prints pauses: a table, one line for each, or one note about all of them."""

from __future__ import annotations

from collections.abc import Sequence

from umbel.cli.formatting import duration
from umbel.cli.output import print_line, print_note, print_table
from umbel.control import Pause
from umbel.operations.pause_texts import paused_by, paused_subject
from umbel.urls import mask_secrets

_MAX_NAMES = 3


def print_pause_table(pauses: Sequence[Pause]) -> None:
    """Print a table of pauses, or that there are none."""
    if not pauses:
        print_line("Nothing is paused.")
        return
    rows = [
        (pause.scope, pause.name, paused_by(pause), _age(pause), mask_secrets(pause.reason))
        for pause in pauses
    ]
    print_table(("scope", "name", "by", "for", "reason"), rows, right=("for",))


def print_pause_lines(pauses: Sequence[Pause]) -> None:
    """Print one line for each pause, for example below a table."""
    for pause in pauses:
        reason = f": {mask_secrets(pause.reason)}" if pause.reason else ""
        since = f" for {_age(pause)}" if _age(pause) else ""
        print_line(f"{paused_subject(pause)} paused{since} by {paused_by(pause)}{reason}")


def print_pause_note(pauses: Sequence[Pause]) -> None:
    """Print to stderr that something is paused, if it is."""
    if not pauses:
        return
    names = [paused_subject(pause) for pause in pauses[:_MAX_NAMES]]
    more = f" and {len(pauses) - _MAX_NAMES} more" if len(pauses) > _MAX_NAMES else ""
    print_note(f"Paused: {', '.join(names)}{more}. See umbel pause list.")


def _age(pause: Pause) -> str:
    """Return how long it has been paused; "" if its entry cannot be read."""
    return duration(pause.age) if pause.since else ""
