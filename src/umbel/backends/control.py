"""The role that stores the requests of operators: pauses and cancellations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from umbel.messages import State

Scope = Literal["all", "queue", "task", "gate", "worker"]
NO_WORKER = "no running worker has the task"
MISSING = "missing"
"""The holder of pauses of tasks that no running worker has."""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """What must not start: all jobs, or those of a queue, a task, a gate or a worker."""

    scope: Scope
    name: str = ""
    since: float = 0.0
    reason: str = ""
    holder: str = ""
    """Empty for operators; else the holder ``DEPLOY`` or ``MISSING``. The pauses of each holder are
    independent of the others."""
    age: float = 0.0
    """Seconds since ``since``, by the store's clock."""


class ControlState(msgspec.Struct, frozen=True):
    """What is paused, and the epoch, which grows with every change."""

    epoch: int
    pauses: tuple[Pause, ...]


class Control(Protocol):
    """Pauses are durable. A pause applies to every fetch that starts after it.

    The pause of a worker is enforced by that worker: it fetches nothing once it has confirmed the
    epoch, and it reads the pauses before its first fetch.
    """

    async def state(self) -> ControlState:
        """Return what is paused now."""

    async def pause(self, scope: Scope, name: str, reason: str) -> int:
        """Add an operator's pause; return the new epoch. Pausing twice is fine."""

    async def resume(self, scope: Scope, name: str) -> int:
        """Remove an operator's pause; return the new epoch. It is fine if there is none."""

    async def change_missing(self, missing: Sequence[str], found: Sequence[str]) -> None:
        """Pause the tasks ``missing`` with the holder ``MISSING``, and resume the tasks ``found``,
        in one step.

        If a task is in both, its pause begins again now. Safe to repeat.
        """

    async def cancel(self, jobs: Sequence[str], reason: str) -> dict[str, State]:
        """Cancel jobs that wait immediately; ask the workers of running jobs to stop them.

        Returns the state of each known job after the call: ``cancelled``, ``running`` (the worker
        was asked), or the final state that it had already. Unknown ids are missing in the result.
        """

    async def bury(self, jobs: Sequence[str], reason: str) -> list[str]:
        """Bury those of these jobs that wait, each in one step; return their ids."""

    async def cancellations(self, jobs: Sequence[str]) -> dict[str, str]:
        """Return which of these running jobs are to be stopped, and why."""

    async def wait_for_change(self, since: int, wait: float) -> bool:
        """Wait until the epoch differs from ``since``, by a pause, a resume or a cancellation.

        Returns False after ``wait`` seconds. A caller that knows no epoch yet passes -1.
        """

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""
