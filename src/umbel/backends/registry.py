"""The role that knows which workers are running.

A worker is alive as long as its row exists. It sends heartbeats. A process that sees no new
heartbeat for a whole lease, by its own monotonic clock, removes the row. So the clocks of two
machines are never compared, and a jump of a wall clock ends no worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec


class WorkerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker registers about itself at the start of an incarnation."""

    incarnation: str
    name: str
    host: str
    pid: int
    queues: tuple[str, ...]
    capacity: dict[str, int]
    """How many tasks of each kind it runs at once."""
    lease: float
    tasks: tuple[str, ...] = ()
    interruptible: tuple[str, ...] = ()
    """Which of its tasks may be stopped at any point and run again."""
    code: dict[str, str] = {}
    """The fingerprint of each task's code; see ``tasks.fingerprints``."""
    python: str = ""
    """The Python version; fingerprints of different versions cannot be compared."""
    zone_data: str = ""
    """The version of its time zone data, by which calendars of schedules are computed."""
    index: int | None = None
    """The worker index: the one that it asks for, or was given."""
    former: tuple[str, ...] = ()
    """Earlier incarnations of this process that it has outlived; see ``Registry.register``."""


class RegisteredWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A running worker, as read from the registry."""

    entry: WorkerEntry
    heartbeats: int
    """The number of heartbeats; it grows with each."""
    age: float
    """Seconds since it was registered, by the store's clock."""
    silent: float
    """Seconds since its last heartbeat, by the store's clock. For display only."""
    running: int = 0
    epoch: int = 0
    """The control epoch that it has confirmed: it fetches nothing that was paused up to then."""
    stopping: bool = False


def read_workers(rows: Iterable[Sequence[Any]]) -> list[RegisteredWorker]:
    """Return the workers of these rows. Rows that no worker wrote are left out."""
    return [
        RegisteredWorker(
            entry=entry,
            heartbeats=heartbeats,
            age=age,
            silent=silent,
            running=running,
            epoch=epoch,
            stopping=bool(stopping),
        )
        for text, heartbeats, age, silent, running, epoch, stopping in rows
        if (entry := _entry(text)) is not None
    ]


def _entry(text: str) -> WorkerEntry | None:
    try:
        return msgspec.json.decode(text, type=WorkerEntry)
    except (ValueError, RecursionError):
        return None


INBOX_RECEIPT_GRACE = 3600.0
"""Seconds for which a receipt is kept after its message has expired, because clocks differ."""


class InboxReceipt(StrEnum):
    """What the registry knows of a message to the inbox of one worker."""

    FIRST = "first"
    """It was not received before."""
    REDELIVERED = "again"
    """The same job was received before: its worker died, its run failed, or it was put back."""
    DUPLICATE = "copy"
    """Another job with this id was received before: the message was sent a second time."""
    EXPIRED = "late"
    """It was not received before and has expired. Nothing is recorded."""


class Registry(Protocol):
    """Registers workers and records their heartbeats."""

    async def register(self, worker: WorkerEntry) -> int:
        """Register an incarnation, and return its index. Safe to repeat.

        The row is durable before the worker claims anything. The index is the one that the worker
        asks for, else the one reserved for its name, else the lowest free one.

        ``worker.former`` names incarnations whose leases lapsed while their process was alive. Each
        death that was or will be counted for one of them is taken back once and counted as a lapse.
        A job that was buried because of such a death is queued again, unless it may run only once.
        The names are kept for a day.

        Raises:
            IndexTaken: a running worker with another name has the index.
        """

    async def heartbeat(
        self, incarnation: str, *, running: int, epoch: int, stopping: bool
    ) -> bool:
        """Record a heartbeat. Return False if the worker is not registered: its leases are lost."""

    async def workers(self) -> list[RegisteredWorker]:
        """Return all running workers."""

    async def remove(self, incarnation: str, heartbeats: int) -> bool:
        """Remove a worker if its number of heartbeats is unchanged. Return whether it was."""

    async def unregister(self, incarnation: str) -> None:
        """End the worker's own incarnation after all its jobs are settled. Safe to repeat."""

    async def record_inbox_receipts(self, messages: Mapping[str, float]) -> dict[str, InboxReceipt]:
        """Record that messages to one worker were received; return whether each was before.

        ``messages`` maps the id of each job to the time at which its message expires, by the
        store's clock. When it returns, the receipts are durable: the job is marked as received, and
        its id is known at least until that time, even if the job is deleted. Safe to repeat.
        """

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""
