"""The role that ends jobs on request: cancellations and burials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from umbel.messages import State


class Control(Protocol):
    """Ends jobs that wait, and asks workers to stop jobs that run."""

    async def cancel(self, jobs: Sequence[str], reason: str) -> dict[str, State]:
        """Cancel jobs that wait immediately; ask the workers of running jobs to stop them.

        Returns the state of each known job after the call: ``cancelled``, ``running`` (the worker
        was asked), or the final state that it had already. Unknown ids are missing in the result.
        If a worker was asked, the revision of ``CANCELLATIONS`` changes, so that it is notified.
        """

    async def bury(self, jobs: Sequence[str], reason: str) -> list[str]:
        """Bury those of these jobs that wait, each in one step; return their ids."""

    async def cancellations(self, jobs: Sequence[str]) -> dict[str, str]:
        """Return which of these running jobs are to be stopped, and why."""

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""
