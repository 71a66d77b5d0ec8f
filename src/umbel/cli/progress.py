"""Prints the progress of long work to stderr."""

from __future__ import annotations

from umbel.cli.formatting import count
from umbel.cli.output import print_note
from umbel.clock import Clock

_INTERVAL_SECONDS = 2.0


class DeletionProgress:
    """Called with how many have been deleted so far; prints it every few seconds."""

    def __init__(self, clock: Clock, noun: str) -> None:
        self._clock = clock
        self._noun = noun
        self._printed = clock.monotonic()

    def __call__(self, deleted: int) -> None:
        now = self._clock.monotonic()
        if now - self._printed >= _INTERVAL_SECONDS:
            self._printed = now
            print_note(f"{count(deleted, self._noun)} deleted so far")
