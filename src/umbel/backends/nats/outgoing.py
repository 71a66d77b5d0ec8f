"""Messages on their way out, and what each of them was answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from umbel.backends.nats.errors import NO_RESPONDERS


class Post(NamedTuple):
    """A message to publish. ``head`` is a block of NATS headers, or empty."""

    subject: str
    head: bytes
    data: bytes


class Answer(NamedTuple):
    """What came back for one of them."""

    data: bytes
    status: int
    """The server's own, when nobody else answers. Else 0."""


def is_missing(answer: Answer) -> bool:
    """Whether it is the server's word that nobody listens on the subject."""
    return answer.status == NO_RESPONDERS


def lines(posts: Sequence[Post], inbox: str) -> bytes:
    """All of them as the protocol has it; each is answered under its own number."""
    return b"".join([_line(post, f"{inbox}.{number}") for number, post in enumerate(posts)])


def bare_lines(posts: Sequence[Post]) -> bytes:
    """The same for messages that nobody is to answer."""
    return b"".join([_line(post, "") for post in posts])


def _line(post: Post, reply: str) -> bytes:
    subject, head, data = post
    where = f"{subject} {reply}" if reply else subject
    if not head:
        return b"PUB %b %d\r\n%b\r\n" % (where.encode(), len(data), data)
    size = len(head)
    start = f"HPUB {where} {size} {size + len(data)}\r\n".encode()
    return b"%b%b%b\r\n" % (start, head, data)


def status(headers: bytes) -> int:
    """The number in the first line of a block of headers: ``NATS/1.0 503``. 0 without one."""
    digits = headers[9:12]
    return int(digits) if headers[8:9] == b" " and digits.isdigit() else 0


class Answers:
    """So many answers, gathered as they come."""

    __slots__ = ("_left", "complete", "found")

    def __init__(self, count: int) -> None:
        self.found: list[Answer | None] = [None] * count
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when all are there, and when no more will come."""
        self._left = count

    def hear(self, number: bytes, data: bytes, headers: bytes) -> None:
        """One of them. What is no answer of ours is passed over."""
        place = int(number) if number.isdigit() else len(self.found)
        if place < len(self.found) and self.found[place] is None:
            self.found[place] = Answer(data, status(headers) if headers else 0)
            self._left -= 1
            if not self._left:
                self.give_up()

    def give_up(self) -> None:
        """No more will come."""
        if not self.complete.done():
            self.complete.set_result(None)
