"""nats-py's client with raw reads and writes.

nats-py connects, authenticates, parses the protocol and detects a silent server. Four things are
done here with private parts of it, because its public API cannot do them:

- Messages are handed on before their headers are parsed. nats-py stops reading for ever if a
  message has a status line that is not UTF-8, and the server would deliver that message again.
- ``tls://`` requires encryption. nats-py would send the password unencrypted to a server that does
  not require TLS.
- A batch of protocol lines is written in one call.
- A connection to a server that does not answer is closed at once, without waiting for it.

Subscriptions are therefore kept by ``Connection``; nats-py has none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nats import errors
from nats.aio.client import Client as NatsClient

OnMessage = Callable[[int, bytes, bytes, bytes, bytes], None]
"""Called with a message: subscription, subject, reply subject, data, headers."""


class Client(NatsClient):
    """One connection. It does not reconnect.

    If it did, nats-py would publish buffered messages after their senders were told of a failure.
    """

    def __init__(self, *, requires_tls: bool) -> None:
        super().__init__()
        self._requires_tls = requires_tls
        self.on_message: OnMessage = lambda *_: None

    def write(self, data: bytes) -> None:
        """Write protocol lines. A lost connection may lose them without an error.

        Raises:
            ConnectionClosedError: the connection is closed.
        """
        if self.is_closed or self._transport is None:
            raise errors.ConnectionClosedError
        self._transport.write(data)

    def abort(self) -> None:
        """Close the socket at once."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            with suppress(RuntimeError):  # its event loop is closed
                writer.transport.abort()

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        self.on_message(sid, subject, reply, data, headers or b"")

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self._requires_tls and not info.get("tls_required"):
            if not info.get("tls_available"):
                raise errors.SecureConnWantedError
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)
