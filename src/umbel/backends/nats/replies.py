"""Sends replies as plain messages to the current subscribers of a subject."""

from __future__ import annotations

import re
from collections.abc import Sequence

from umbel.backends.nats.address import NatsAddress
from umbel.backends.nats.connections import Connection, OutgoingMessage
from umbel.backends.nats.errors import translate_errors
from umbel.backends.nats.headers import size_of, write
from umbel.backends.nats.reconnecting import Reconnector
from umbel.backends.nats.sender import max_body_bytes
from umbel.backends.transport import Reply
from umbel.messages.documents import without_data

_SUBJECT = re.compile(r"(?![$])[^\s.*>\x00-\x20\x7f]+(\.[^\s.*>\x00-\x20\x7f]+)*")
_MAX_SUBJECT_BYTES = 1024
_TIMEOUT_SECONDS = 4.0


class ReplySender:
    """Has its own connection, opened for the first reply.

    A server closes the connection of a client that publishes without permission. The asker chooses
    the address, and it must not cost the connection that carries jobs.
    """

    def __init__(self, address: NatsAddress) -> None:
        self._reconnector = Reconnector(address, on_open=_do_nothing)

    async def reply(self, replies: Sequence[Reply]) -> None:
        """See ``Transport.reply``. Replies to invalid subjects are dropped."""
        valid = [one for one in replies if _is_subject(one.asked.address)]
        if not valid:
            return
        with translate_errors(self._reconnector.address.label):
            connection = await self._reconnector.connection()
            messages = [_to_message(one, connection.max_payload) for one in valid]
            await connection.publish_unconfirmed(messages, _TIMEOUT_SECONDS)

    async def close(self) -> None:
        """Close the connection. Twice is fine."""
        await self._reconnector.close()


async def _do_nothing(_: Connection) -> None:
    pass


def _is_subject(address: str) -> bool:
    """Return whether it can be published to. Subjects with ``$`` are commands to the server."""
    size = len(address.encode(errors="replace"))
    return size <= _MAX_SUBJECT_BYTES and bool(_SUBJECT.fullmatch(address))


def _to_message(reply: Reply, max_payload: int) -> OutgoingMessage:
    document = reply.document
    headers = write(document)
    if size_of(headers) + len(document.body.data) > max_payload:
        document = without_data(document, max_body_bytes(max_payload))
        headers = write(document)
    return OutgoingMessage(reply.asked.address, headers, document.body.data)
