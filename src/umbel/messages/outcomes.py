"""How a run can end. The set is closed: ``settlements.disposition`` matches every one."""

from __future__ import annotations

import msgspec

from umbel.messages.bodies import Body
from umbel.messages.leases import Failure


class Succeeded(msgspec.Struct, frozen=True, tag=True):
    """The task returned; ``result`` is its encoded value, or None when it is not kept."""

    result: Body | None = None


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The task failed for good: its retries are used up, or it said the failure is final."""

    failure: Failure


class Retry(msgspec.Struct, frozen=True, tag=True):
    """The attempt failed and the job runs again after ``delay`` seconds."""

    failure: Failure
    delay: float
    section: str | None = None
    """The retry section whose own counter pays for it; None: the job's attempts do."""


class Snoozed(msgspec.Struct, frozen=True, tag=True):
    """The task asked to be run again later. Costs no attempt."""

    delay: float


class Interrupted(msgspec.Struct, frozen=True, tag=True):
    """The worker stopped the task, or never started it. Back to the queue, no attempt counted."""

    reason: str = ""
    delay: float = 0.0


class Parked(msgspec.Struct, frozen=True, tag=True):
    """It was not started: it has to pass these gates first, or goes back to its queue when there
    are none. Costs nothing, and is no attempt."""

    gates: tuple[str, ...]
    unfit: tuple[tuple[str, str], ...] = ()
    """Pools, and members of them that failed their check and are not to be handed out."""


class Cancelled(msgspec.Struct, frozen=True, tag=True):
    """Somebody asked for the job not to run or to stop."""

    reason: str = ""


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """The message can never run: not decodable, unknown task, arguments that do not fit."""

    reason: str


class Expired(msgspec.Struct, frozen=True, tag=True):
    """Its expiry passed before it could start."""


Outcome = (
    Succeeded | Failed | Retry | Snoozed | Interrupted | Parked | Cancelled | Rejected | Expired
)
