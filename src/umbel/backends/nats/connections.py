"""One life of a connection: opened once, and of no use after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count

from nats import errors

from umbel.backends.nats.address import Home
from umbel.backends.nats.client import Client
from umbel.backends.nats.errors import NO_RESPONDERS, Refused
from umbel.backends.nats.outgoing import Answer, Answers, Post, bare_lines, is_missing, lines

WakeUpListener = Callable[[bytes, bytes, bytes], None]
"""Told of a message of its subscription: where to acknowledge it, data, headers."""

_HELLO = 2.0
_GOODBYE = 1.0
_PING = 5
_ACKNOWLEDGE = b"$JS.ACK."
_ANSWERS = 1
"""The subscription that every answer comes to."""


def acknowledgement(token: bytes) -> bytes:
    """The line that makes JetStream forget a message."""
    return b"PUB %b 4\r\n+ACK\r\n" % token


def negative_acknowledgement(token: bytes) -> bytes:
    """The line that makes JetStream hand a message to somebody else."""
    return b"PUB %b 4\r\n-NAK\r\n" % token


class Connection:
    """Publishes, and hears: answers to what it published, and messages it subscribed to."""

    def __init__(self, client: Client) -> None:
        self.loop = asyncio.get_running_loop()
        self.loss: Exception | None = None
        """Why it is of no use any more."""
        self._client = client
        self._inbox = client.new_inbox()
        self._numbers = count(_ANSWERS + 1)
        self._calls: dict[bytes, Answers] = {}
        self._ears: dict[int, tuple[WakeUpListener, Callable[[], None]]] = {}

    @classmethod
    async def open(cls, home: Home, server: str) -> Connection:
        """A new one, ready for use. Raises the errors of nats-py, and of sockets."""
        client = Client(insists_on_tls=home.tls)
        connection = cls(client)
        try:
            async with asyncio.timeout(_HELLO):
                await client.connect(
                    [server],
                    error_cb=connection._complain,
                    closed_cb=connection._end,
                    name="umbel",
                    allow_reconnect=False,
                    # One is the least: for 0, nats-py tries a server that is away for ever.
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    ping_interval=_PING,
                    tls=home.context,
                    **home.login,
                )
        except (errors.Error, OSError) as error:
            client.abort()
            # What happened first: nats-py ends with "no servers", whatever it was.
            raise connection.loss or error from None
        except BaseException:
            client.abort()
            raise
        connection.loss = None
        connection._start()
        return connection

    def _start(self) -> None:
        self._client.heard = self._hear
        self.write(b"SUB %b.a.*.* %d\r\n" % (self._inbox.encode(), _ANSWERS))

    @property
    def max_payload(self) -> int:
        """Bytes that headers and data of a message may have together."""
        return self._client.max_payload

    @property
    def neighbours(self) -> list[str]:
        """The other servers of the cluster, as far as this one has told."""
        return [f"nats://{found.netloc}" for found in self._client.discovered_servers]

    def write(self, data: bytes) -> None:
        """Hand protocol lines to the socket; after a loss they go nowhere."""
        with suppress(errors.ConnectionClosedError):
            self._client.write(data)

    async def publish(self, posts: Sequence[Post], timeout: float) -> list[Answer | None]:
        """Publish all at once. The answer to each; None where none came, in time or ever."""
        return await self._ask(len(posts), lambda inbox: lines(posts, inbox), timeout)

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        """What a service answers.

        Raises:
            Refused: nobody is there to answer. TimeoutError, or what the connection died of.
        """
        (answer,) = await self.publish([Post(subject, b"", data)], timeout)
        if answer is None:
            self.lose(TimeoutError(f"no answer on {subject}"))  # another server may do better
            raise self.loss or TimeoutError
        if is_missing(answer):
            raise Refused(NO_RESPONDERS, f"nobody answers on {subject}")
        return answer.data

    async def tell(self, posts: Sequence[Post], timeout: float) -> None:
        """Publish to whoever listens now, if anybody does.

        Raises:
            TimeoutError, or what the connection died of: any of them may have got there or not.
        """
        if not await self.barrier(bare_lines(posts), timeout):
            raise self.loss or TimeoutError

    async def barrier(self, before: bytes, timeout: float) -> bool:
        """Write these lines; what they brought on has arrived when it gives True.

        The server reads our lines in order, so our own message comes back after all it had sent
        us before it read them.
        """
        (answer,) = await self._ask(
            1, lambda inbox: b"%bPUB %b.0 0\r\n\r\n" % (before, inbox.encode()), timeout
        )
        return answer is not None

    def subscribe(self, ear: WakeUpListener, deaf: Callable[[], None]) -> tuple[int, str]:
        """A new subscription: its number, and the subject that the caller has to write.

        ``deaf`` is told when the connection is lost.
        """
        number = next(self._numbers)
        self._ears[number] = ear, deaf
        return number, f"{self._inbox}.p.{number}"

    def unsubscribe(self, number: int) -> None:
        """Forget a subscription that was given up. What still arrives for it goes back."""
        self._ears.pop(number, None)

    async def close(self) -> None:
        """Say goodbye, so that all that was written arrives; not for long."""
        if self.loss is None:
            await self.barrier(b"", _GOODBYE)
        with suppress(TimeoutError, OSError, errors.Error):
            async with asyncio.timeout(_GOODBYE):
                await self._client.close()
        self.lose(errors.ConnectionClosedError())

    def lose(self, error: Exception) -> None:
        """It is of no use any more; nobody waits on it from now on."""
        self.loss = self.loss or error
        self._client.abort()
        for answers in self._calls.values():
            answers.give_up()
        for _, deaf in list(self._ears.values()):
            deaf()

    async def _ask(
        self, many: int, written: Callable[[str], bytes], timeout: float
    ) -> list[Answer | None]:
        call = next(self._numbers)
        answers = Answers(many)
        if self.loss is not None:
            return answers.found
        self._calls[b"%d" % call] = answers
        try:
            self.write(written(f"{self._inbox}.a.{call}"))
            await asyncio.wait([answers.complete], timeout=timeout)
        finally:
            del self._calls[b"%d" % call]
        return answers.found

    def _hear(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if sid == _ANSWERS:
            _, call, number = subject.rsplit(b".", 2)
            if (answers := self._calls.get(call)) is not None:
                answers.hear(number, data, headers)
        elif (found := self._ears.get(sid)) is not None:
            found[0](reply, data, headers)
        elif reply.startswith(_ACKNOWLEDGE):
            # It crossed our word that we want no more. Unanswered, it would come to nobody until
            # the server takes us for dead.
            self.write(negative_acknowledgement(reply))

    async def _complain(self, error: Exception) -> None:
        if not self._client.is_connected:
            self.loss = error
        elif "permissions violation" in str(error):
            self.lose(error)  # what was not allowed will never be answered

    async def _end(self) -> None:
        self.lose(self._client.last_error or errors.ConnectionClosedError())
