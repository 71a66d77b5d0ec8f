"""The port of backlogs, which keep messages while the broker cannot be reached."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from umbel.messages import Envelope
from umbel.messages.wire import read


class BacklogStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a backlog holds, for display."""

    kind: str
    messages: int
    oldest: float | None = None
    """Wall time at which the oldest message was added."""
    limit: int


class UnreadableMessage(Exception):
    """A stored message cannot be read: another version wrote it, or it was changed by hand."""

    def __init__(self, job: str, why: Exception) -> None:
        super().__init__(f"it cannot be read: {why}")
        self.job = job


def read_stored(job: str, event: bytes) -> Envelope:
    """Return a message that a backlog has stored. Raises UnreadableMessage."""
    try:
        return read(event)
    except Exception as error:  # stored bytes can cause any error
        raise UnreadableMessage(job, error) from error


class Backlog(Protocol):
    """Stores messages of one namespace, in order. Any thread may call it."""

    durable: bool
    """Whether its messages survive the process."""

    def put(self, envelopes: Sequence[Envelope]) -> None:
        """Add all messages at the end, or none of them.

        Raises:
            BacklogFull: the limit is reached.
            Unavailable: it cannot store anything.
        """

    def oldest(self, limit: int, without: Collection[str] = ()) -> list[Envelope]:
        """Return the first messages, except for the jobs ``without``. They stay in the backlog.

        The time for which a message was stored is subtracted from its delay and its time to live.

        Raises:
            UnreadableMessage: one of them cannot be read; the error names the job.
            Unavailable: the backlog cannot be read.
        """

    def remove(self, jobs: Sequence[str]) -> None:
        """Remove messages that have been published. Raises Unavailable."""

    def status(self) -> BacklogStatus:
        """Return how much it holds. Raises Unavailable."""

    def has(self, job: str) -> bool:
        """Return whether it holds this message. Raises Unavailable."""

    def count_volatile(self) -> int:
        """Return how many messages would be lost with the process."""

    def acquire_leadership(self) -> bool:
        """Return whether this process is the one to publish the messages, until it closes or dies.

        Several processes may share a backlog; one of them at a time is the leader.
        """

    def open_unlocked(self) -> Backlog:
        """Return a backlog of the same messages that shares no lock or connection with this one.

        It is for ``put`` and ``status`` while a suspended thread may hold a lock of this one.
        """

    def close(self) -> None:
        """Free its resources. Closing twice is fine."""
