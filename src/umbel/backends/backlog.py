"""What a backlog promises."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from umbel.messages import Envelope
from umbel.messages.wire import read


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What a backlog holds, for people."""

    kind: str
    messages: int
    oldest: float | None = None
    """Wall time at which the oldest of them was put there."""
    limit: int


class UnreadableMessage(Exception):
    """A kept message cannot be read: another version wrote it, or it was changed by hand."""

    def __init__(self, job: str, why: Exception) -> None:
        super().__init__(f"it cannot be read: {why}")
        self.job = job


def read_kept(job: str, event: bytes) -> Envelope:
    """A message as a backlog wrote it. Raises UnreadableMessage."""
    try:
        return read(event)
    except Exception as error:  # what is there may be of any type
        raise UnreadableMessage(job, error) from error


class Backlog(Protocol):
    """A line of messages of one namespace. Safe from any thread."""

    durable: bool
    """Whether what it holds survives the process."""

    def put(self, envelopes: Sequence[Envelope]) -> None:
        """Keep all of them, or none, behind everything that is there.

        Raises:
            BacklogFull: there is no room. Unavailable: it cannot keep anything.
        """

    def oldest(self, limit: int, without: Collection[str] = ()) -> list[Envelope]:
        """The first of the line, except for the jobs ``without``; they stay there.

        Of the seconds that one may wait or has left, those are gone for which it was kept.

        Raises:
            UnreadableMessage: one of them cannot be read; it names the job. Unavailable.
        """

    def remove(self, jobs: Sequence[str]) -> None:
        """They have been published. Raises Unavailable."""

    def held(self) -> Held:
        """How much it holds. Raises Unavailable."""

    def has(self, job: str) -> bool:
        """Whether it holds this message. Raises Unavailable."""

    def mortal(self) -> int:
        """How many messages would be lost with the process."""

    def lead(self) -> bool:
        """Whether this process is the one to publish it, until it closes or dies."""

    def beside(self) -> Backlog:
        """The same messages, without a lock or a connection of this one: for ``put`` and ``held``
        while a thread that is suspended may hold those.
        """

    def close(self) -> None:
        """Free what it uses. Twice is fine."""
