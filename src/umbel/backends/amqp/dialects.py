"""What AMQP 1.0 leaves to each broker: how a queue is addressed, and whether it can be made."""

from __future__ import annotations

import re
from typing import NamedTuple

_QUEUE = "/queue/"
_LONGEST = 255
_MAJOR = re.compile(r"\d+")


class Dialect(NamedTuple):
    """How one kind of broker is spoken to."""

    use: str
    """What goes before a queue's name in an address."""
    make: str | None = None
    """The same, in an address that makes the queue when it is not there; None where there is no
    such thing, or where every address does."""
    early: bool = False
    """Whether it is RabbitMQ before version 4. That accepts messages for a queue that was deleted
    meanwhile, and drops them; and it breaks down when credit is drained from an empty queue."""


def dialect_of(product: str, version: str, prefix: str | None) -> Dialect:
    """For a broker that says it is this, unless the URL knows better."""
    if prefix is not None:
        return Dialect(prefix)
    if product == "RabbitMQ":
        found = _MAJOR.match(version)
        if found and int(found[0]) >= 4:
            return Dialect("/queues/", _QUEUE)
        return Dialect("/amq/queue/", _QUEUE, early=True)
    return Dialect("")


def reply_address(dialect: Dialect, address: str) -> str | None:
    """Where an answer goes: the asker's address, in a form that makes nothing on the broker.

    None for what no broker takes: there are some that break down over it.
    """
    if not address.isprintable() or len(address) > _LONGEST:
        return None
    if not dialect.early:
        return address
    if not address.isascii() or address.startswith("/temp-queue/"):
        return None
    if address.startswith(_QUEUE):
        return dialect.use + address.removeprefix(_QUEUE)
    return address if address.startswith("/") else dialect.use + address
