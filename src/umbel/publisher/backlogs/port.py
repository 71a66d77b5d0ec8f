"""What a backlog promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from umbel.messages import Envelope


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What a backlog holds, for people."""

    kind: str
    messages: int
    oldest: float | None = None
    """Wall time at which the oldest of them was put there."""
    limit: int


class Backlog(Protocol):
    """A line of messages of one namespace. Safe from any thread."""

    durable: bool
    """Whether what it holds survives the process."""

    def put(self, envelopes: Sequence[Envelope]) -> None:
        """Keep all of them, or none, behind everything that is there.

        Raises:
            BacklogFull: there is no room. Unavailable: it cannot keep anything.
        """

    def oldest(self, limit: int) -> list[Envelope]:
        """The first of the line; they stay there. Raises Unavailable."""

    def remove(self, jobs: Sequence[str]) -> None:
        """They have been published. Raises Unavailable."""

    def held(self) -> Held:
        """How much it holds. Raises Unavailable."""

    def mortal(self) -> int:
        """How many messages would be lost with the process."""

    def lead(self) -> bool:
        """Whether this process is the one to publish it, until it closes or dies."""

    def close(self) -> None:
        """Free what it uses. Twice is fine."""
