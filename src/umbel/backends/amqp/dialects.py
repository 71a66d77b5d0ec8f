"""What AMQP 1.0 leaves to each broker: how a queue is addressed, and whether it can be created."""

from __future__ import annotations

import re
from typing import NamedTuple

_CREATE_PREFIX = "/queue/"
_MAX_ADDRESS_LENGTH = 255
_MAJOR_VERSION = re.compile(r"\d+")


class Dialect(NamedTuple):
    """How one kind of broker addresses queues."""

    prefix: str
    """What precedes a queue's name in an address."""
    create_prefix: str | None = None
    """The same in an address that creates the queue if it does not exist.

    None where the broker has no such address, or creates a queue for every address."""
    is_rabbitmq_3: bool = False
    """Whether it is RabbitMQ before version 4.

    That accepts messages for a queue that has just been deleted, and drops them. It also fails when
    credit is drained from an empty queue."""


def detect_dialect(product: str, version: str, prefix: str | None) -> Dialect:
    """Return the dialect of a broker. A prefix from the URL takes precedence."""
    if prefix is not None:
        return Dialect(prefix)
    if product == "RabbitMQ":
        major = _MAJOR_VERSION.match(version)
        if major and int(major[0]) >= 4:
            return Dialect("/queues/", _CREATE_PREFIX)
        return Dialect("/amq/queue/", _CREATE_PREFIX, is_rabbitmq_3=True)
    return Dialect("")


def reply_address(dialect: Dialect, address: str) -> str | None:
    """Return the address for a reply, in a form that creates nothing on the broker.

    Returns None for an address that no broker accepts: some brokers fail over it.
    """
    if not address.isprintable() or len(address) > _MAX_ADDRESS_LENGTH:
        return None
    if not dialect.is_rabbitmq_3:
        return address
    if not address.isascii() or address.startswith("/temp-queue/"):
        return None
    if address.startswith(_CREATE_PREFIX):
        return dialect.prefix + address.removeprefix(_CREATE_PREFIX)
    return address if address.startswith("/") else dialect.prefix + address
