"""Messages and the envelope that carries one through a broker."""

from __future__ import annotations

import os
import random
import time
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from umbel.messages.bodies import Body


class MessageType(StrEnum):
    """What a message means to whoever receives it."""

    COMMAND = "umbel.command"
    DOCUMENT = "umbel.document"
    EVENT = "umbel.event"


class Command(msgspec.Struct, frozen=True):
    """Run this task with these arguments."""

    task: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}

    @property
    def data(self) -> dict[str, Any]:
        """What its envelope's body says."""
        return {"args": self.args, "kwargs": self.kwargs}


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A result or a domain object: data about a subject, with nothing to be done."""

    id: str
    subject: str
    body: Body
    created: float

    def envelope(self, namespace: str) -> Envelope:
        """The document as it travels."""
        return Envelope(
            id=self.id,
            subject=self.subject,
            body=self.body,
            type=MessageType.DOCUMENT,
            namespace=namespace,
            created=self.created,
        )


KINDS = ("", "io", "cpu")
"""Which budget runs a job: coroutines, threads, or empty while nobody has said."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A message with its delivery headers. The body stays bytes until a task needs it."""

    id: str
    subject: str
    body: Body
    type: MessageType = MessageType.COMMAND
    namespace: str = "umbel"
    queue: str = "default"
    kind: str = ""
    """Which budget runs it: ``io``, ``cpu``, or empty when the sender does not know the task."""
    priority: int = 0
    created: float = 0.0
    """When it was made; 0.0 leaves it to the store, which writes down when it took the message."""
    not_before: float | None = None
    expires: float | None = None
    delay: float | None = None
    """Seconds until it may run, counted by the store from when it takes the message. Only a
    message on its way has them: the store turns them into ``not_before``."""
    expires_in: float | None = None
    """Seconds until it expires, counted and kept in the same way: as ``expires``."""
    attempt: int = 1
    max_deaths: int = 3
    """How many workers may die running it before it is buried."""
    unique: str | None = None
    on_conflict: str = "raise"
    traceparent: str | None = None
    gates: tuple[str, ...] = ()
    """What it has to pass before it runs, in this order. A sender that does not know leaves it
    to the worker."""
    headers: dict[str, str] = {}
    """Further extension attributes: per-call timeout, retry policy, what to track, and the like."""


def at(moment: float | None, seconds: float | None, now: float) -> float | None:
    """The moment that is meant by a moment or by seconds from ``now``, of which one is given."""
    return moment if moment is not None or seconds is None else now + seconds


def waited(envelope: Envelope, seconds: float) -> Envelope:
    """The message after so many seconds in which no store had it: those count, too."""
    if envelope.delay is None and envelope.expires_in is None:
        return envelope
    left = [
        None if one is None else max(one - max(seconds, 0.0), 0.0)
        for one in (envelope.delay, envelope.expires_in)
    ]
    return replace(envelope, delay=left[0], expires_in=left[1])


def fresh_id() -> str:
    """A new UUID, version 7: unique everywhere, sorted by the time it was made."""
    return fresh_ids(1)[0]


def fresh_ids(count: int) -> list[str]:
    """So many new UUIDs."""
    when, bits = time.time_ns() // 1_000_000 << 80 | _VERSION, _generator.getrandbits
    return [_dashed(when | bits(80) & _FREE) for _ in range(count)]


def _dashed(number: int) -> str:
    digits = number.to_bytes(16, "big").hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def random_hex(size: int) -> str:
    """So many random bytes, as text: to tell things apart, not to keep secrets.

    From a generator that the kernel seeds once in a process; asking the kernel each time is slow
    on some virtual machines.
    """
    return _generator.getrandbits(8 * size).to_bytes(size, "big").hex()


_VERSION = 0x7000_8000_0000_0000_0000
"""What the standard sets of a UUID's last 80 bits: version 7, variant 1; the others are free."""
_FREE = 0x0FFF_3FFF_FFFF_FFFF_FFFF
_generator = random.Random()
os.register_at_fork(after_in_child=_generator.seed)
