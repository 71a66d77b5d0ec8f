"""Answers to whoever asked: plain messages, to whoever listens on the subject now."""

from __future__ import annotations

import re
from collections.abc import Sequence

from umbel.backends.nats.address import Home
from umbel.backends.nats.errors import explaining
from umbel.backends.nats.headers import write
from umbel.backends.nats.outgoing import Post
from umbel.backends.nats.reconnecting import Link
from umbel.backends.nats.sender import limit_of
from umbel.backends.transport import Reply
from umbel.messages.documents import without_data

_SUBJECT = re.compile(r"(?![$])[^\s.*>\x00-\x20\x7f]+(\.[^\s.*>\x00-\x20\x7f]+)*")
_LONGEST = 1024
_PATIENCE = 4.0


class Answerer:
    """Has a connection of its own, opened for the first answer.

    A server cuts whoever publishes where it may not. The address is the asker's word: it must not
    cost us the connection that carries jobs.
    """

    def __init__(self, home: Home) -> None:
        self._link = Link(home, opened=lambda _: None)

    async def reply(self, replies: Sequence[Reply]) -> None:
        """Hand over what has an address. Errors are those of the port."""
        fine = [one for one in replies if _is_subject(one.asked.address)]
        if not fine:
            return
        with explaining(self._link.home.address):
            connection = await self._link.connection()
            largest = connection.max_payload
            await connection.tell([_post(one, largest) for one in fine], _PATIENCE)

    async def close(self) -> None:
        """Free the connection. Twice is fine."""
        await self._link.close()


def _is_subject(address: str) -> bool:
    """Whether it can be published to. What begins with ``$`` is the server's own, and an order."""
    return len(address.encode(errors="replace")) <= _LONGEST and bool(_SUBJECT.fullmatch(address))


def _post(reply: Reply, largest: int) -> Post:
    document = reply.document
    head = write(document)
    if len(head) + len(document.body.data) > largest:
        document = without_data(document, limit_of(largest))
        head = write(document)
    return Post(reply.asked.address, head, document.body.data)
