"""Publishing in a caller's own thread, with confirms."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pika  # type: ignore[import-untyped]

from umbel.backends.connecting import connected_by
from umbel.backends.rabbitmq.address import Home
from umbel.backends.rabbitmq.channels import QUEUE
from umbel.backends.rabbitmq.errors import explaining, is_blocked, is_missing
from umbel.backends.rabbitmq.frames import Confirm, Message, publish
from umbel.backends.rabbitmq.raw_connection import Line
from umbel.errors import Unavailable


class Direct:
    """Publishes over one connection, in whatever thread calls; one at a time.

    Every method keeps the monotonic moment ``until``, and raises Unavailable. So it does when the
    server has confirmed nothing for ``patience`` seconds, or says that it is blocked.
    """

    def __init__(self, home: Home, patience: float) -> None:
        self._home = home
        self._patience = patience
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._awaited: dict[int, Message] = {}
        self._refused: list[Message] = []
        self._returned: set[tuple[str, str]] = set()

    @property
    def blocked(self) -> str:
        """Why the server takes no messages at the moment, as it has said when last used."""
        line = self._line
        return line.blocked if line is not None and line.loss is None else ""

    def publish(
        self,
        messages: Sequence[Message],
        until: float,
        before: Callable[[], object],
        after: Callable[[], object],
    ) -> list[Message]:
        """Send them; those that the server did not take. See ``Publishing.publish``.

        ``before`` is called when nothing keeps them from being written any more, ``after`` when
        all are, and before any confirm is waited for.
        """
        with self._using(until) as line:
            if line.blocked:
                raise self._is_blocked(line)
            self._refused, self._awaited = [], {}
            self._returned.clear()
            before()
            line.until = min(until, time.monotonic() + self._patience)
            for one in messages:
                line.sent += 1
                self._awaited[line.sent] = one
                publish(line.publishing, one)
            line.flush()
            after()
            while left := len(self._awaited):
                line.until = min(until, time.monotonic() + self._patience)
                line.wait(lambda: len(self._awaited) < left or line.blocked or line.closed)
                if line.closed is not None:
                    raise line.closed
                if line.blocked and self._awaited:
                    raise self._is_blocked(line)
            returned = [one for one in messages if (one.queue, one.id) in self._returned]
            return returned + self._refused

    def finds(self, queue: str, until: float) -> bool:
        """Whether a queue exists."""
        with self._using(until) as line, self._asking(line) as channel:
            try:
                self._ask(line, channel, channel.queue_declare, queue, passive=True)
            except pika.exceptions.ChannelClosedByBroker as error:
                if is_missing(error):
                    return False
                raise
            return True

    def declare(self, queue: str, until: float) -> None:
        """Make a queue for good."""
        with self._using(until) as line, self._asking(line) as channel:
            self._ask(line, channel, channel.queue_declare, queue, durable=True, arguments=QUEUE)

    def close(self) -> None:
        """Free the connection. Twice is fine, and using it again opens another."""
        with self._lock:
            line, self._line = self._line, None
        if line is not None and line.loss is None:
            with suppress(pika.exceptions.AMQPError, OSError):
                line.until = time.monotonic() + 1.0
                line.close()
                line.wait(lambda: line.loss)
            line.drop()

    @contextmanager
    def _using(self, until: float) -> Iterator[Line]:
        """The connection, nobody else's until then. What leaves it in doubt ends it."""
        with explaining(self._home.address):
            if not self._lock.acquire(timeout=max(until - time.monotonic(), 0.0)):
                raise TimeoutError
            try:
                line = self._fresh(until) or self._connected(until)
                try:
                    yield line
                except Unavailable:  # it has said so itself, and is fine
                    self._line = line
                    raise
                except BaseException:
                    line.drop()
                    raise
                self._line = line
            finally:
                self._lock.release()

    def _fresh(self, until: float) -> Line | None:
        line, self._line = self._line, None
        if line is not None:
            line.until = until
            with suppress(pika.exceptions.AMQPError, OSError):
                line.catch_up()
            if line.loss is None and line.closed is None:
                return line
            line.drop()
        return None

    def _connected(self, until: float) -> Line:
        soon = min(until, time.monotonic() + self._home.connect_timeout)
        line = connected_by(soon, lambda: self._connect(soon), Line.drop)
        line.until = until
        return line

    def _connect(self, until: float) -> Line:
        line = Line(self._home.parameters("publisher"), until)
        try:
            line.wait(lambda: line.is_open)
            channel = line.publishing = self._opened(line)
            channel.add_on_close_callback(line.was_closed)
            channel.add_on_return_callback(self._was_returned)
            self._ask(line, channel, channel.confirm_delivery, self._was_answered)
            line.confirmed = self._told
        except BaseException:
            line.drop()
            raise
        return line

    @contextmanager
    def _asking(self, line: Line) -> Iterator[Any]:
        """A channel for questions: the server closes it over an answer that is no."""
        channel = self._opened(line)
        yield channel
        if channel.is_open:
            channel.close()
            line.wait(lambda: channel.is_closed)

    def _opened(self, line: Line) -> Any:
        channel = line.channel(on_open_callback=lambda _: None)
        line.wait(lambda: channel.is_open or channel.is_closed)
        return channel

    def _ask(
        self, line: Line, channel: Any, method: Callable[..., Any], *args: Any, **options: Any
    ) -> None:
        """Call a method of pika's that has an answer, and wait for it."""
        heard: list[Any] = []
        channel.add_on_close_callback(lambda _, reason: heard.append(reason))
        method(*args, callback=heard.append, **options)
        line.wait(lambda: heard)
        if isinstance(heard[0], BaseException):
            raise heard[0]

    def _was_answered(self, frame: Any) -> None:
        """As pika tells it: taken, or refused."""
        said = Confirm(frame.method.delivery_tag, frame.method.multiple)
        messages = self._told(said)
        if not isinstance(frame.method, pika.spec.Basic.Ack):
            self._refused += messages

    def _told(self, said: Confirm) -> list[Message]:
        """The messages that the server has answered for; they are awaited no more."""
        number, and_lower = said
        numbers = [one for one in self._awaited if one <= number] if and_lower else [number]
        return [self._awaited.pop(one) for one in numbers if one in self._awaited]

    def _was_returned(self, _: Any, method: Any, found: Any, body: bytes) -> None:
        self._returned.add((method.routing_key, found.message_id))

    def _is_blocked(self, line: Line) -> Unavailable:
        return is_blocked(self._home.address, line.blocked)
