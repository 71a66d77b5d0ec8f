"""What a transport's test provides, and how the suite's tests are told over it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from umbel.backends import Arrival, Lane, Lost, Transport
from umbel.messages import JSON, Body, Envelope, fresh_id
from umbel.messages.wire import read_message

DEADLINE = 45.0
"""Seconds after which a test is taken to hang. Nothing else is ever measured."""
SOON = 10.0
"""Seconds that something may take that has to happen."""

IO, CPU = Lane("default", "io"), Lane("default", "cpu")


class Heard(NamedTuple):
    """A message as a plain client of the server gets it."""

    attributes: Mapping[str, Any]
    """CloudEvents attributes from the message's headers, without the transport's prefix; none if
    the message is a structured event."""
    content_type: str
    data: bytes
    correlation: str | None
    """The protocol's own word for what the message belongs to; where it has none, the attribute
    ``correlationid``."""


@dataclass(frozen=True, kw_only=True)
class Asker:
    """Somebody who listens for answers, with nothing but a client of that server."""

    address: str
    """What such a client writes as ``replyto``."""
    hear: Callable[[], Awaitable[Heard]]
    """The next message that comes there; waits for it."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server, or a corner of it that is this test's own, empty at first."""

    namespace: str
    open: Callable[[], AbstractAsyncContextManager[Transport]]
    """A transport of its own, as another process would have."""
    cut: Callable[[], Awaitable[None]]
    """Cuts every connection to it, without a word."""
    drop: Callable[[Lane], Awaitable[None]]
    """Deletes what holds a lane's messages, as an operator might."""
    put: Callable[[Lane, Mapping[str, str], str, bytes], Awaitable[None]]
    """What another program sends to a lane: attributes, content type and data."""
    asker: Callable[[], AbstractAsyncContextManager[Asker]]
    """A client that listens for answers at an address of its own, until it is left. It is made
    with the server's own library, not with the adapter, and its connection is never ``cut``."""
    lost: list[str]
    """The queues that transports found missing."""


def by_queue(lost: list[str]) -> Lost:
    """Notes the queues of the lanes that a transport found missing."""
    return lambda lane: lost.append(lane.queue)


Servers = Callable[[], AbstractAsyncContextManager[Server]]
Tale = Callable[[Any, Server], Coroutine[Any, Any, None]]


def tale(told: Tale) -> Callable[[Any, Servers], None]:
    """A test written as a coroutine over a server."""

    def test(self: Any, server: Servers) -> None:
        asyncio.run(_tell(self, told, server))

    # Not functools.wraps: pytest would look through it and ask for the wrong fixture.
    test.__name__, test.__doc__ = told.__name__, told.__doc__
    test.__qualname__, test.__module__ = told.__qualname__, told.__module__
    return test


async def _tell(suite: Any, told: Tale, servers: Servers) -> None:
    async with asyncio.timeout(DEADLINE), servers() as server:
        await told(suite, server)


def envelope(server: Server, number: int = 0, **changes: Any) -> Envelope:
    """A command that tells which one it is."""
    fields: dict[str, Any] = {
        "id": fresh_id(),
        "subject": "tests.add",
        "body": Body(JSON, b'{"args":[%d],"kwargs":{}}' % number),
        "namespace": server.namespace,
        "kind": "io",
        "created": 1_700_000_000.25,
    }
    return Envelope(**(fields | changes))


async def send(transport: Transport, server: Server, count: int, **changes: Any) -> list[str]:
    """Send so many, one batch; their ids."""
    made = [envelope(server, number, **changes) for number in range(count)]
    await transport.send(made)
    return [one.id for one in made]


async def receive(transport: Transport, lane: Lane = IO, room: int = 100) -> list[Arrival]:
    """What has to come soon."""
    found = await transport.receive({lane: room}, SOON)
    if not found:
        raise AssertionError(f"nothing came from {lane}")
    return found


async def receive_all(transport: Transport, count: int, lane: Lane = IO) -> list[Arrival]:
    """So many, accepted as they come."""
    found: list[Arrival] = []
    while len(found) < count:
        new = await receive(transport, lane, count - len(found))
        await transport.accept(new)
        found += new
    return found


async def is_empty(transport: Transport, lane: Lane = IO) -> bool:
    """Whether nothing comes any more."""
    return not await transport.receive({lane: 100}, 0.3)


def ids(arrivals: list[Arrival]) -> list[str]:
    """The jobs' ids, in order."""
    return [one.id for one in arrivals]


def read(message: Arrival | Heard) -> Envelope:
    """The envelope inside."""
    heading = message.read() if isinstance(message, Arrival) else message[:2]
    return read_message(*heading, message.data)
