"""Durable steps: parts of a job that run once, however often the job runs."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha1
from uuid import UUID

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
    # As uuid5, which parses the namespace each time: a graph needs an id for each of its nodes.
    name = f"step {step}: {index}".encode()
    digest = bytearray(sha1(_namespace(job) + name, usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


@lru_cache(maxsize=64)
def _namespace(job: str) -> bytes:
    return UUID(job).bytes
