"""A foreign program that speaks AMQP 1.0: it uses Proton's own client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from proton import Message, Timeout
from proton.utils import BlockingConnection

from umbel.testing.transports.server import ReceivedMessage, ReplyClient


def connect(url: str) -> BlockingConnection:
    """Return a connection of that program."""
    return BlockingConnection(
        url, timeout=10, allowed_mechs="PLAIN ANONYMOUS", allow_insecure_mechs=True
    )


def put(url: str, address: str, attributes: Mapping[str, str], kind: str, data: bytes) -> None:
    """Send one message."""
    message = Message(body=data, durable=True, inferred=True)
    message.properties = {f"cloudEvents:{name}": text for name, text in attributes.items()}
    if kind:
        message.content_type = kind
    connection = connect(url)
    try:
        connection.create_sender(address).send(message)
    finally:
        connection.close()


class Listener:
    """Waits for answers at an address. ``leave`` removes what is there."""

    def __init__(self, url: str, address: str, leave: Callable[[], None]) -> None:
        self.address = address
        self._leave = leave
        self._connection = connect(url)
        self._receiver = self._connection.create_receiver(address)
        self._turn = threading.Lock()
        self._closed = False

    def receive(self) -> ReceivedMessage | None:
        """Return the next answer; None if it does not arrive soon."""
        with self._turn:
            if self._closed:
                return None
            try:
                message = self._receiver.receive(timeout=0.05)
            except Timeout:
                return None
            self._receiver.accept()
        attributes = {
            name.removeprefix("cloudEvents:"): value for name, value in message.properties.items()
        }
        content_type, body = str(message.content_type), bytes(message.body)
        return ReceivedMessage(attributes, content_type, body, message.correlation_id)

    def close(self) -> None:
        """Close the connection, and remove the address."""
        with self._turn:
            self._closed = True
            self._connection.close()
        self._leave()


@asynccontextmanager
async def reply_client(
    url: str, address: str, leave: Callable[[], None]
) -> AsyncIterator[ReplyClient]:
    """Return a listener in the form that the suite needs."""
    listener = await asyncio.to_thread(Listener, url, address, leave)

    async def receive() -> ReceivedMessage:
        while True:
            if (heard := await asyncio.to_thread(listener.receive)) is not None:
                return heard

    try:
        yield ReplyClient(address=listener.address, receive=receive)
    finally:
        await asyncio.to_thread(listener.close)
