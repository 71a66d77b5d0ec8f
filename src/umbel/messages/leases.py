"""A claim on a job, the delivery that carries it, and what is remembered of each attempt."""

from __future__ import annotations

import msgspec

from umbel.messages.envelopes import Envelope
from umbel.messages.gates import Slot


class Lease(msgspec.Struct, frozen=True):
    """The right to settle one delivery: who holds it and under which fencing number.

    The number grows with every claim of the job, so an outcome that arrives under an older
    one is recognised and refused.
    """

    job: str
    owner: str
    """The incarnation that holds it, not the worker's name."""
    fence: int


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception as data: enough to show it, and to raise it again where its class is known."""

    type: str
    message: str
    traceback: str = ""
    args: str | None = None
    """The exception's arguments as JSON, when they have a JSON form."""


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run of a job, as told in its story."""

    number: int
    worker: str
    started: float
    finished: float
    ended: str
    """The outcome's name in lower case, or ``lost`` when the worker died."""
    failure: Failure | None = None
    reason: str = ""
    delay: float | None = None
    """Seconds until the next run, when there is to be one."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """An envelope under lease: what a broker hands over and a worker may run now."""

    envelope: Envelope
    lease: Lease
    attempt: int = 1
    deaths: int = 0
    sections: dict[str, int] = {}
    """How often each retry section of the task has failed so far."""
    claimed: float = 0.0
    """When it was claimed, by the store's clock."""
    slots: tuple[Slot, ...] = ()
    """What it holds of the gates it has passed, until it is settled."""

    @property
    def id(self) -> str:
        """The job's id."""
        return self.lease.job
