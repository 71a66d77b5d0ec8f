"""What a transport's test provides, and how the tests of the suite run over it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from umbel.backends import Arrival, Lane, OnLaneMissing, Transport
from umbel.messages import JSON, Body, Envelope, fresh_id
from umbel.messages.wire import read_message

DEADLINE = 45.0
"""Seconds after which a test counts as hanging. Tests measure no other time."""
SOON = 10.0
"""Maximum seconds for an event that must happen."""

IO, CPU = Lane("default", "io"), Lane("default", "cpu")


class ReceivedMessage(NamedTuple):
    """A message as a plain client of the server receives it."""

    attributes: Mapping[str, Any]
    """CloudEvents attributes from the message's headers, without the transport's prefix; none if
    the message is a structured event."""
    content_type: str
    data: bytes
    correlation: str | None
    """The protocol's own correlation id; if it has none, the attribute ``correlationid``."""


@dataclass(frozen=True, kw_only=True)
class ReplyClient:
    """Receives replies with the server's own client library."""

    address: str
    """The address that such a client writes as ``replyto``."""
    receive: Callable[[], Awaitable[ReceivedMessage]]
    """Waits for the next message and returns it."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server, or a part of it that belongs to this test and is empty at first."""

    namespace: str
    open: Callable[[], AbstractAsyncContextManager[Transport]]
    """Opens a separate transport, as another process would."""
    cut: Callable[[], Awaitable[None]]
    """Cuts every connection to the server without notice."""
    drop: Callable[[Lane], Awaitable[None]]
    """Deletes the queue or stream of a lane, as an operator might."""
    put: Callable[[Lane, Mapping[str, str], str, bytes], Awaitable[None]]
    """Sends a message to a lane as another program: attributes, content type, data."""
    reply_client: Callable[[], AbstractAsyncContextManager[ReplyClient]]
    """Opens a client that receives replies at its own address. It uses the server's own library
    instead of the adapter, and ``cut`` does not affect its connection."""
    lost: list[str]
    """The queues that transports found missing."""


def record_missing_queue(lost: list[str]) -> OnLaneMissing:
    """Return a callback that records the queues of lanes that a transport found missing."""
    return lambda lane: lost.append(lane.queue)


OpenServer = Callable[[], AbstractAsyncContextManager[Server]]
TransportTest = Callable[[Any, Server], Coroutine[Any, Any, None]]


def transport_test(body: TransportTest) -> Callable[[Any, OpenServer], None]:
    """Make a coroutine a test of the suite."""

    def test(self: Any, server: OpenServer) -> None:
        asyncio.run(_run(self, body, server))

    # Not functools.wraps: pytest would inspect the wrapped function and ask for its fixtures.
    test.__name__, test.__doc__ = body.__name__, body.__doc__
    test.__qualname__, test.__module__ = body.__qualname__, body.__module__
    return test


async def _run(suite: Any, body: TransportTest, servers: OpenServer) -> None:
    async with asyncio.timeout(DEADLINE), servers() as server:
        await body(suite, server)


def envelope(server: Server, number: int = 0, **changes: Any) -> Envelope:
    """Return a command that carries a number."""
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
    """Send a batch of ``count`` commands. Return their ids."""
    made = [envelope(server, number, **changes) for number in range(count)]
    await transport.send(made)
    return [one.id for one in made]


async def receive(transport: Transport, lane: Lane = IO, room: int = 100) -> list[Arrival]:
    """Receive messages, which must arrive soon."""
    found = await transport.receive({lane: room}, SOON)
    if not found:
        raise AssertionError(f"nothing came from {lane}")
    return found


async def receive_all(transport: Transport, count: int, lane: Lane = IO) -> list[Arrival]:
    """Receive and accept ``count`` messages."""
    found: list[Arrival] = []
    while len(found) < count:
        new = await receive(transport, lane, count - len(found))
        await transport.accept(new)
        found += new
    return found


async def is_empty(transport: Transport, lane: Lane = IO) -> bool:
    """Return whether no more messages arrive."""
    return not await transport.receive({lane: 100}, 0.3)


def ids(arrivals: list[Arrival]) -> list[str]:
    """Return the ids of the jobs, in order."""
    return [one.id for one in arrivals]


def read(message: Arrival | ReceivedMessage) -> Envelope:
    """Return the envelope in a message."""
    heading = message.read() if isinstance(message, Arrival) else message[:2]
    return read_message(*heading, message.data)
