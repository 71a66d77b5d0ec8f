"""NATS: one connection to a server or cluster, and the parts of JetStream that Umbel uses."""

from umbel.drivers.nats.connections import Connection, acknowledgement, negative_acknowledgement
from umbel.drivers.nats.direct import Direct, at_once
from umbel.drivers.nats.faults import explaining
from umbel.drivers.nats.home import Home
from umbel.drivers.nats.jetstream import (
    Stream,
    check_stored,
    make_consumer,
    make_stream,
    missing_part,
    ping,
    purge,
)
from umbel.drivers.nats.line import Line
from umbel.drivers.nats.link import Link
from umbel.drivers.nats.posts import Answer, Post, is_missing
from umbel.drivers.nats.pulls import Message, Pull

__all__ = [
    "Answer",
    "Connection",
    "Direct",
    "Home",
    "Line",
    "Link",
    "Message",
    "Post",
    "Pull",
    "Stream",
    "acknowledgement",
    "at_once",
    "check_stored",
    "explaining",
    "is_missing",
    "make_consumer",
    "make_stream",
    "missing_part",
    "negative_acknowledgement",
    "ping",
    "purge",
]
