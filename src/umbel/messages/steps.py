"""Durable steps: parts of a job that run once, however often the job runs."""

from __future__ import annotations

from uuid import UUID, uuid5

import msgspec

from umbel.messages.bodies import Body
from umbel.messages.leases import Lease


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A finished step with its encoded result."""

    number: int
    """Its position in the order in which the task calls its steps, from 1."""
    name: str
    result: Body
    started: float
    finished: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max(self.finished - self.started, 0.0)


class KeptStep(msgspec.Struct, frozen=True):
    """A step to store, and the lease under which it ran."""

    lease: Lease
    step: Step


def derived_id(job: str, step: int, index: int) -> str:
    """Return the id of a job that a step publishes.

    It is the same each time that the step runs, so that a repeated publish is a duplicate.
    """
    return str(uuid5(UUID(job), f"step {step}: {index}"))
