"""Which version of a job ``JobStore.find_unsent`` returned, so that only that one becomes sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_MAX_REMEMBERED = 10_000
"""Versions that are remembered. A job whose version was dropped is sent again, harmlessly."""


class JobVersion(NamedTuple):
    """A job as it was when it was returned to be sent."""

    job: str
    fence: int
    queue: str


class UnsentVersions:
    """Remembers the version of each job that was returned to be sent.

    A message may arrive, and its job be put back, before its sender calls ``mark_sent``. Then there
    is no message of the job any more, and it must stay unsent. Its fencing number is higher, or its
    queue is another.
    """

    def __init__(self) -> None:
        self._versions: dict[str, JobVersion] = {}

    def remember(self, job: str, fence: int, queue: str) -> None:
        """Remember a version. An older version of the same job is kept: it is the safe one."""
        if len(self._versions) >= _MAX_REMEMBERED:
            self._versions.clear()
        self._versions.setdefault(job, JobVersion(job, fence, queue))

    def pop(self, jobs: Sequence[str]) -> list[JobVersion]:
        """Return the versions of these jobs, and forget them."""
        return [self._versions.pop(job) for job in jobs if job in self._versions]
