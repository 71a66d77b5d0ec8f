"""The outcomes of a run. The set is closed: ``settlements.disposition`` matches each of them."""

from __future__ import annotations

import msgspec

from umbel.messages.bodies import Body
from umbel.messages.leases import Failure


class Succeeded(msgspec.Struct, frozen=True, tag=True):
    """The task returned; ``result`` is its encoded value, or None if it is not kept."""

    result: Body | None = None
    keep_for: float | None = None
    """Seconds after which the record is pruned; None: only its age and the history's size count."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The task failed permanently: no retries are left, or the failure was marked as final."""

    failure: Failure


class Retry(msgspec.Struct, frozen=True, tag=True):
    """The attempt failed, and the job runs again after ``delay`` seconds."""

    failure: Failure
    delay: float
    section: str | None = None
    """The retry section that counts the failure; None if it counts as an attempt of the job."""


class Snoozed(msgspec.Struct, frozen=True, tag=True):
    """The task asked to be run again later. Costs no attempt."""

    delay: float


class Interrupted(msgspec.Struct, frozen=True, tag=True):
    """The worker stopped the task, or never started it. It is requeued and costs no attempt."""

    reason: str = ""
    delay: float = 0.0


class Parked(msgspec.Struct, frozen=True, tag=True):
    """The job was not started: it first has to pass these gates. Without gates it is requeued.

    This costs no attempt, and is not recorded as one."""

    gates: tuple[str, ...]
    unfit: tuple[tuple[str, str], ...] = ()
    """Pairs of a pool and a member that failed its check and must not be assigned."""


class Cancelled(msgspec.Struct, frozen=True, tag=True):
    """The job was cancelled, before it started or while it ran."""

    reason: str = ""


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """The message can never run: it cannot be decoded, or its task or arguments are wrong."""

    reason: str


class Expired(msgspec.Struct, frozen=True, tag=True):
    """The job's expiry passed before it could start."""


Outcome = (
    Succeeded | Failed | Retry | Snoozed | Interrupted | Parked | Cancelled | Rejected | Expired
)
