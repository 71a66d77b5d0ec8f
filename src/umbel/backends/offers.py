"""What a ledger gave out to be sent, and as what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_MOST = 10_000
"""Offers that are remembered. What was forgotten is sent once more, which is harmless."""


class Offer(NamedTuple):
    """A job as it was when it was given out."""

    job: str
    fence: int
    queue: str


class Offers:
    """Says which jobs have been sent as what they were.

    A message may arrive, and its job be put back, before whoever sent it can say so: then it is
    late to call the job sent, for there is no message of it any more. Its fence is higher, or its
    queue another.
    """

    def __init__(self) -> None:
        self._open: dict[str, Offer] = {}

    def make(self, job: str, fence: int, queue: str) -> None:
        """A job is given out. Of two offers the older one counts: the other is made again."""
        if len(self._open) >= _MOST:
            self._open.clear()
        self._open.setdefault(job, Offer(job, fence, queue))

    def redeem(self, jobs: Sequence[str]) -> list[Offer]:
        """What these jobs were when they were given out."""
        return [self._open.pop(job) for job in jobs if job in self._open]
