"""Leases, deliveries, and what a job's history records of each attempt."""

from __future__ import annotations

import msgspec

from umbel.messages.envelopes import Envelope
from umbel.messages.gates import Slot
from umbel.urls import mask_secrets


class Lease(msgspec.Struct, frozen=True):
    """The right to settle one delivery: its owner and its fencing number.

    The number grows with every claim of the job, so that a late outcome with an older number is
    rejected.
    """

    job: str
    owner: str
    """The incarnation of the worker, not the worker's name."""
    fence: int


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception as data. It can be shown, and raised again where its class is known."""

    type: str
    message: str
    traceback: str = ""
    args: str | None = None
    """The exception's arguments as JSON, if they can be encoded."""
    node: str = ""
    """Of a graph: the path and task of the node that has failed."""
    job: str = ""
    """Of a graph: the job of that node."""

    @property
    def line(self) -> str:
        """The last line of its traceback; secrets of URLs in it are masked."""
        return mask_secrets(f"{self.type.rpartition(':')[2]}: {self.message}")


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run of a job in its history."""

    number: int
    worker: str
    started: float
    finished: float
    ended: str
    """The outcome's name in lower case, or ``lost`` if the worker died."""
    failure: Failure | None = None
    reason: str = ""
    delay: float | None = None
    """Seconds until the next run, if there is one."""
    members: dict[str, str] = {}
    """The member of each pool that it used, by the pool's name."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """An envelope under lease: a job that a worker may run now."""

    envelope: Envelope
    lease: Lease
    attempt: int = 1
    deaths: int = 0
    sections: dict[str, int] = {}
    """How often each retry section of the task has failed so far."""
    claimed: float = 0.0
    """When it was claimed, by the store's clock."""
    slots: tuple[Slot, ...] = ()
    """The slots that it holds in gates until it is settled."""

    @property
    def id(self) -> str:
        """The job's id."""
        return self.lease.job
