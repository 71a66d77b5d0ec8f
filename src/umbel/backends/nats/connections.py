"""A connection for an event loop. It does not reconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count

from nats import errors

from umbel.backends.nats.address import NatsAddress
from umbel.backends.nats.client import Client
from umbel.backends.nats.errors import NO_RESPONDERS, JetStreamError
from umbel.backends.nats.protocol import (
    OutgoingMessage,
    PendingResponses,
    Response,
    negative_acknowledgement,
    publish_lines,
    request_lines,
)

OnDelivery = Callable[[bytes, bytes, bytes], None]
"""Called with a message of a subscription: reply subject, data, headers."""

_CONNECT_TIMEOUT_SECONDS = 2.0
_CLOSE_TIMEOUT_SECONDS = 1.0
_PING_INTERVAL_SECONDS = 5
_ACKNOWLEDGEMENT_PREFIX = b"$JS.ACK."
_RESPONSES_SUBSCRIPTION = 1
"""All responses arrive at this subscription."""


class Connection:
    """Publishes messages and dispatches responses and deliveries to their callers."""

    def __init__(self, client: Client) -> None:
        self.loop = asyncio.get_running_loop()
        self.error: Exception | None = None
        """Why the connection cannot be used any more."""
        self._client = client
        self._inbox = client.new_inbox()
        self._numbers = count(_RESPONSES_SUBSCRIPTION + 1)
        self._requests: dict[bytes, PendingResponses] = {}
        self._subscriptions: dict[int, tuple[OnDelivery, Callable[[], None]]] = {}

    @classmethod
    async def open(cls, address: NatsAddress, server: str) -> Connection:
        """Return a new connection. Raise the errors of nats-py and of sockets."""
        client = Client(requires_tls=address.requires_tls)
        connection = cls(client)
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_SECONDS):
                await client.connect(
                    [server],
                    error_cb=connection._on_error,
                    closed_cb=connection._on_closed,
                    name="umbel",
                    allow_reconnect=False,
                    # With 0, nats-py tries an unreachable server for ever.
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    ping_interval=_PING_INTERVAL_SECONDS,
                    tls=address.ssl_context,
                    **address.login,
                )
        except (errors.Error, OSError) as error:
            client.abort()
            # The first error is the cause: nats-py always ends with "no servers".
            raise connection.error or error from None
        except BaseException:
            client.abort()
            raise
        connection.error = None
        connection._start()
        return connection

    def _start(self) -> None:
        self._client.on_message = self._on_message
        self.write(b"SUB %b.a.*.* %d\r\n" % (self._inbox.encode(), _RESPONSES_SUBSCRIPTION))

    @property
    def max_payload(self) -> int:
        """Maximum size in bytes of headers and data of a message together."""
        return self._client.max_payload

    @property
    def discovered_servers(self) -> list[str]:
        """The other servers of the cluster that this one has named."""
        return [f"nats://{found.netloc}" for found in self._client.discovered_servers]

    def write(self, lines: bytes) -> None:
        """Write protocol lines. After a loss they are dropped."""
        with suppress(errors.ConnectionClosedError):
            self._client.write(lines)

    async def publish(
        self, messages: Sequence[OutgoingMessage], timeout: float
    ) -> list[Response | None]:
        """Publish messages, and return the response to each; None if there was none in time."""
        return await self._request(
            len(messages), lambda inbox: request_lines(messages, inbox), timeout
        )

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        """Return the response of a service.

        Raises:
            JetStreamError: nothing is subscribed to the subject.
            TimeoutError: there was no response. Or the error of the lost connection.
        """
        (response,) = await self.publish([OutgoingMessage(subject, b"", data)], timeout)
        if response is None:
            self.mark_lost(TimeoutError(f"no response on {subject}"))  # another server may respond
            raise self.error or TimeoutError
        if response.is_missing:
            raise JetStreamError(NO_RESPONDERS, f"nothing responds on {subject}")
        return response.data

    async def publish_unconfirmed(
        self, messages: Sequence[OutgoingMessage], timeout: float
    ) -> None:
        """Publish messages to the current subscribers, if there are any.

        Raises:
            TimeoutError: each message may or may not have arrived. Or the error of the lost
                connection.
        """
        if not await self.flush(publish_lines(messages), timeout):
            raise self.error or TimeoutError

    async def flush(self, lines: bytes, timeout: float) -> bool:
        """Write protocol lines and wait until the server has processed them.

        Return False if it did not in time. The server processes lines in order, so everything that
        it sent before has arrived, too.
        """
        (response,) = await self._request(
            1, lambda inbox: b"%bPUB %b.0 0\r\n\r\n" % (lines, inbox.encode()), timeout
        )
        return response is not None

    def subscribe(self, on_delivery: OnDelivery, on_lost: Callable[[], None]) -> tuple[int, str]:
        """Register a subscription. Return its number and subject, for the caller's SUB line.

        ``on_lost`` is called when the connection is lost.
        """
        number = next(self._numbers)
        self._subscriptions[number] = on_delivery, on_lost
        return number, f"{self._inbox}.p.{number}"

    def unsubscribe(self, number: int) -> None:
        """Remove a subscription. Messages that still arrive for it are returned."""
        self._subscriptions.pop(number, None)

    async def close(self) -> None:
        """Close it after the server has read everything that was written, or after a timeout."""
        if self.error is None:
            await self.flush(b"", _CLOSE_TIMEOUT_SECONDS)
        with suppress(TimeoutError, OSError, errors.Error):
            async with asyncio.timeout(_CLOSE_TIMEOUT_SECONDS):
                await self._client.close()
        self.mark_lost(errors.ConnectionClosedError())

    def mark_lost(self, error: Exception) -> None:
        """Close the socket, and end all calls that wait on this connection."""
        self.error = self.error or error
        self._client.abort()
        for responses in self._requests.values():
            responses.finish()
        for _, on_lost in list(self._subscriptions.values()):
            on_lost()

    async def _request(
        self, many: int, lines: Callable[[str], bytes], timeout: float
    ) -> list[Response | None]:
        number = next(self._numbers)
        responses = PendingResponses(many)
        if self.error is not None:
            return responses.found
        self._requests[b"%d" % number] = responses
        try:
            self.write(lines(f"{self._inbox}.a.{number}"))
            await asyncio.wait([responses.complete], timeout=timeout)
        finally:
            del self._requests[b"%d" % number]
        return responses.found

    def _on_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        if sid == _RESPONSES_SUBSCRIPTION:
            _, request, number = subject.rsplit(b".", 2)
            if (responses := self._requests.get(request)) is not None:
                responses.add(number, data, headers)
        elif (found := self._subscriptions.get(sid)) is not None:
            found[0](reply, data, headers)
        elif reply.startswith(_ACKNOWLEDGEMENT_PREFIX):
            # It was on its way when the subscription ended. Without an acknowledgement, the server
            # would deliver it only after ack_wait.
            self.write(negative_acknowledgement(reply))

    async def _on_error(self, error: Exception) -> None:
        if not self._client.is_connected:
            self.error = error
        elif "permissions violation" in str(error):
            self.mark_lost(error)  # there will be no response to what was not permitted

    async def _on_closed(self) -> None:
        self.mark_lost(self._client.last_error or errors.ConnectionClosedError())
