"""What is kept of a step: a part of a job that runs once, however often the job does."""

from __future__ import annotations

from uuid import UUID, uuid5

import msgspec

from umbel.messages.bodies import Body
from umbel.messages.leases import Lease


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is done, with its encoded result."""

    number: int
    """Its place in the order in which the task calls its steps, from 1."""
    name: str
    result: Body
    started: float
    finished: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max(self.finished - self.started, 0.0)


class Kept(msgspec.Struct, frozen=True):
    """A step to keep, and the lease under which it was done."""

    lease: Lease
    step: Step


def derived_id(job: str, step: int, place: int) -> str:
    """The id of what a step publishes, the same each time it runs: a repeat is a duplicate."""
    return str(uuid5(UUID(job), f"step {step}: {place}"))
