"""Messages, and the envelope in which a broker carries one."""

from __future__ import annotations

import os
import random
import time
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from umbel.errors import BadMessage
from umbel.messages.bodies import Body


class MessageType(StrEnum):
    """What a receiver does with a message."""

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
        """The data in the body of its envelope."""
        return {"args": self.args, "kwargs": self.kwargs}


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A result or a domain object: data about a subject. Nothing is run for it."""

    id: str
    subject: str
    body: Body
    created: float

    def envelope(self, namespace: str) -> Envelope:
        """Return the document in an envelope."""
        return Envelope(
            id=self.id,
            subject=self.subject,
            body=self.body,
            type=MessageType.DOCUMENT,
            namespace=namespace,
            created=self.created,
        )


SCHEDULE = "schedule"
"""The header with the name of the schedule that published a job."""
NOMINAL_TIME = "nominaltime"
"""The header with the time at which such a job was due, in seconds since 1970."""
DEFAULT_KINDS = ("io", "cpu")
"""The kinds of tasks for which every worker can have capacity: coroutines and threads."""
KINDS = ("", *DEFAULT_KINDS)
"""All kinds. A new kind is added here; no adapter, claim or wire format names one. Empty means that
the sender does not know the kind; such a job needs capacity of each default kind."""


def known_kind(kind: str) -> str:
    """Return the kind. Raise BadMessage if it is unknown: no worker would ever take such a job."""
    if kind not in KINDS:
        raise BadMessage("kind", f"{kind!r} is none of {', '.join(KINDS[1:])} and nothing")
    return kind


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A message with its delivery headers. The body stays bytes until a task needs it."""

    id: str
    subject: str
    body: Body
    type: MessageType = MessageType.COMMAND
    namespace: str = "umbel"
    queue: str = "default"
    kind: str = ""
    """``io`` or ``cpu``; empty if the sender does not know the task."""
    priority: int = 0
    created: float = 0.0
    """When it was created; for 0.0 the store sets the time at which it takes the message."""
    not_before: float | None = None
    expires: float | None = None
    delay: float | None = None
    """Seconds until it may run, counted from when the store takes the message. The store replaces
    them with ``not_before``."""
    expires_in: float | None = None
    """Seconds until it expires, counted likewise. The store replaces them with ``expires``."""
    attempt: int = 1
    max_deaths: int = 3
    """How many workers may die while running it before it is buried."""
    unique: str | None = None
    on_conflict: str = "raise"
    traceparent: str | None = None
    gates: tuple[str, ...] = ()
    """The gates that it has to pass before it runs, in this order. If the sender does not know
    them, the worker adds them."""
    headers: dict[str, str] = {}
    """Other extension attributes, such as the timeout, the retry policy and what to track."""


def resolve_time(moment: float | None, seconds: float | None, now: float) -> float | None:
    """Return a time that is given as such or as seconds from ``now``; None if it is not given."""
    return moment if moment is not None or seconds is None else now + seconds


def subtract_wait(envelope: Envelope, seconds: float) -> Envelope:
    """Return the message with its delays shortened by the time that it spent in a backlog."""
    if envelope.delay is None and envelope.expires_in is None:
        return envelope
    left = [
        None if delay is None else max(delay - max(seconds, 0.0), 0.0)
        for delay in (envelope.delay, envelope.expires_in)
    ]
    return replace(envelope, delay=left[0], expires_in=left[1])


def fresh_id() -> str:
    """Return a new UUID of version 7, which sorts by its time of creation."""
    return fresh_ids(1)[0]


def fresh_ids(count: int) -> list[str]:
    """Return new UUIDs of version 7."""
    when, bits = time.time_ns() // 1_000_000 << 80 | _VERSION_BITS, _generator.getrandbits
    return [_dashed(when | bits(80) & _RANDOM_BITS) for _ in range(count)]


def _dashed(number: int) -> str:
    digits = number.to_bytes(16, "big").hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def random_hex(size: int) -> str:
    """Return random bytes as hexadecimal text. They are for unique names, not for secrets.

    They come from a generator that is seeded by the kernel once per process: a call of the kernel
    each time is slow on some virtual machines.
    """
    return _generator.getrandbits(8 * size).to_bytes(size, "big").hex()


_VERSION_BITS = 0x7000_8000_0000_0000_0000
"""The fixed bits among the last 80 of a UUID: version 7, variant 1. The others are random."""
_RANDOM_BITS = 0x0FFF_3FFF_FFFF_FFFF_FFFF
_generator = random.Random()
os.register_at_fork(after_in_child=_generator.seed)
