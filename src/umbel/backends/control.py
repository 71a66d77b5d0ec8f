"""The role that keeps what operators ask for: pauses and cancellations."""

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
    """Something that is not to be started: everything, a queue, a task, what waits at a gate, or
    whatever one worker could fetch."""

    scope: Scope
    name: str = ""
    since: float = 0.0
    reason: str = ""
    holder: str = ""
    """Who made it: empty for operators, else a deployment, or ``MISSING``. Each holder's pauses are
    independent of the others'."""
    age: float = 0.0
    """Seconds since then, by the store's clock."""


class ControlState(msgspec.Struct, frozen=True):
    """What is paused, and the number that grows with every change of it."""

    epoch: int
    pauses: tuple[Pause, ...]


class Control(Protocol):
    """Pauses survive restarts of everything. A pause holds for each fetch that starts after it.

    A worker's own pause is held by that worker: it fetches nothing once it has confirmed the epoch,
    and looks before its first fetch.
    """

    async def state(self) -> ControlState:
        """What is paused now."""

    async def pause(self, scope: Scope, name: str, reason: str) -> int:
        """Pause, as an operator; returns the new epoch. Pausing twice is fine."""

    async def resume(self, scope: Scope, name: str) -> int:
        """Lift an operator's pause; returns the new epoch. Resuming what is not paused is fine."""

    async def change_missing(self, missing: Sequence[str], found: Sequence[str]) -> None:
        """Pause tasks with the holder ``MISSING``, and lift the pauses of others, in one step.

        A task that is in both is paused anew: its pause begins now. Safe to repeat.
        """

    async def cancel(self, jobs: Sequence[str], reason: str) -> dict[str, State]:
        """Cancel what waits at once; ask the worker of what runs to stop it.

        Returns each known job's state after the call: ``cancelled``, ``running`` (asked), or the
        final state it had already. Unknown ids are missing from the answer.
        """

    async def bury(self, jobs: Sequence[str], reason: str) -> list[str]:
        """Bury those of these jobs that wait, in one step each; returns their ids."""

    async def cancellations(self, jobs: Sequence[str]) -> dict[str, str]:
        """Which of these running jobs somebody wants stopped, and why."""

    async def changed(self, since: int, wait: float) -> bool:
        """Wait until the epoch is another than ``since``: a pause or a cancellation was made.

        False after ``wait`` seconds. Who knows of nothing yet asks with -1.
        """

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""
