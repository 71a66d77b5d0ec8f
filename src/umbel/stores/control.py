"""The role that keeps what operators ask for: pauses and cancellations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from umbel.messages import State

Scope = Literal["all", "queue", "task"]


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not to be started: everything, one queue or one task."""

    scope: Scope
    name: str = ""
    since: float = 0.0
    reason: str = ""


class ControlState(msgspec.Struct, frozen=True):
    """What is paused, and the number that grows with every change of it."""

    epoch: int
    pauses: tuple[Pause, ...]


class Control(Protocol):
    """Pauses survive restarts of everything. A pause holds for each fetch that starts after it."""

    async def state(self) -> ControlState:
        """What is paused now."""

    async def pause(self, scope: Scope, name: str, reason: str) -> int:
        """Pause; returns the new epoch. Pausing twice is fine."""

    async def resume(self, scope: Scope, name: str) -> int:
        """Resume; returns the new epoch. Resuming what is not paused is fine."""

    async def cancel(self, jobs: Sequence[str], reason: str) -> dict[str, State]:
        """Cancel what waits at once; ask the worker of what runs to stop it.

        Returns each known job's state after the call: ``cancelled``, ``running`` (asked), or the
        final state it had already. Unknown ids are missing from the answer.
        """

    async def cancellations(self, jobs: Sequence[str]) -> dict[str, str]:
        """Which of these running jobs somebody wants stopped, and why."""

    async def changed(self, wait: float) -> bool:
        """Wait for a hint that a pause or cancellation was made. False after ``wait`` seconds.

        Whoever asks for the first time knows of nothing yet: then it is True at once.
        """

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""
