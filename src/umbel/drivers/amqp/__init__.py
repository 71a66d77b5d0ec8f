"""AMQP 1.0: brokers that speak it, and our own processes among themselves.

Qpid Proton keeps the protocol's state and never sees a socket: it runs in the event loop like any
other code. Everything that knows Proton is in this folder.
"""

from umbel.drivers.amqp.connections import Connection, Wire, connect
from umbel.drivers.amqp.engine import (
    ACCEPTED,
    MISSING,
    REJECTED,
    RELEASED,
    TOO_LARGE,
    Aside,
    Incoming,
    Outgoing,
    Received,
)
from umbel.drivers.amqp.home import Home
from umbel.drivers.amqp.messages import Post, decode, encode
from umbel.drivers.amqp.serving import listen

__all__ = [
    "ACCEPTED",
    "MISSING",
    "REJECTED",
    "RELEASED",
    "TOO_LARGE",
    "Aside",
    "Connection",
    "Home",
    "Incoming",
    "Outgoing",
    "Post",
    "Received",
    "Wire",
    "connect",
    "decode",
    "encode",
    "listen",
]
