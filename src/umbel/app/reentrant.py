"""Connections for calls that are made inside another call of the same thread.

A signal handler or a finalizer may publish while its thread is publishing. The outer call may hold
the locks of the ordinary connections, and cannot continue before the inner call has returned. So
the inner call uses other connections, in another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from umbel.app.connections import CLOSE_TIMEOUT_SECONDS, Connections
from umbel.backends import Published, Roles, reentry
from umbel.backends.backlog import Backlog
from umbel.clock import Clock
from umbel.errors import Unavailable
from umbel.messages import Envelope
from umbel.publisher import BROKER_TIME_SHARE, Bridge, Publisher, Send, blocking_send

T = TypeVar("T")


class _Opened(NamedTuple):
    roles: Roles
    bridge: Bridge
    send: Send
    backlog: Backlog | None


class ReentrantSender:
    """Sends for the calls at one level of nesting: see ``backends.reentry``.

    It opens its connections on first use, and takes no lock of the ordinary ones.
    """

    def __init__(self, level: int, connections: Connections) -> None:
        self._level = level
        self._connections = connections
        self._opened: dict[str, _Opened] = {}
        """Holds at most one entry. ``dict.setdefault`` needs no lock."""

    def send(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """Publish the envelopes, or put them into the backlog: see ``Forwarder.send``."""
        opened = self._get()
        if opened.backlog is None:
            return opened.send(envelopes, timeout)
        forwarder = self._connections.find_forwarder()
        why = "the backlog holds messages already"
        if forwarder is None or not forwarder.has_backlog:
            try:
                return opened.send(envelopes, BROKER_TIME_SHARE * timeout)
            except Unavailable as error:
                can_keep = opened.backlog.durable if forwarder is None else forwarder.can_keep
                if not can_keep:
                    raise
                why = str(error)
        opened.backlog.put(envelopes)
        self._connections.publish_backlog(why)
        return [Published(envelope.id) for envelope in envelopes]

    def ask(self, question: Callable[[Roles], Coroutine[Any, Any, T]], timeout: float) -> T:
        """Return what a question to the roles returns. Raises TimeoutError."""
        opened = self._get()
        return opened.bridge.run(question(opened.roles), timeout)

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        opened = self._opened.pop("opened", None)
        if opened is not None:
            if opened.backlog is not None:
                opened.backlog.close()
            with suppress(TimeoutError, Unavailable):
                opened.bridge.run(opened.roles.close(), CLOSE_TIMEOUT_SECONDS)
            opened.bridge.close()

    def _get(self) -> _Opened:
        return self._opened.get("opened") or self._opened.setdefault("opened", self._open())

    def _open(self) -> _Opened:
        roles, bridge = self._connections.backend.open(is_loop_dedicated=True), Bridge(self._level)
        send, backlog = blocking_send(roles.broker, bridge), self._connections.backlog()
        return _Opened(roles, bridge, send, None if backlog is None else backlog.open_unlocked())


class _Level(NamedTuple):
    sender: ReentrantSender
    publisher: Publisher


class ReentrantConnections:
    """The connections for every level of nesting. Takes no lock."""

    def __init__(
        self, connections: Connections, clock: Clock, *, deadline: float, has_backlog: bool
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._deadline = deadline
        self._has_backlog = has_backlog
        self._levels: dict[tuple[int, int], _Level] = {}
        """By generation and level."""

    def publish(self, level: int, envelopes: Sequence[Envelope]) -> list[Published]:
        """Publish for a call at this level of nesting: see ``Publisher.publish``."""
        return self._get(level).publisher.publish_in_sender_thread(envelopes)

    def ask(self, level: int, question: Callable[[Roles], Coroutine[Any, Any, T]]) -> T:
        """Return what a question to the roles of this level returns. Raises TimeoutError."""
        return self._get(level).sender.ask(question, self._deadline)

    def close(self) -> None:
        """Close the connections of this process. The next call opens new ones."""
        with reentry.entered():
            for (generation, _), level in list(self._levels.items()):
                if generation == self._connections.bridge.generation:
                    level.publisher.close()
                    level.sender.close()

    def _get(self, level: int) -> _Level:
        key = self._connections.bridge.generation, level
        if (found := self._levels.get(key)) is not None:
            return found
        sender = ReentrantSender(level, self._connections)
        publisher = Publisher(
            sender.send,
            self._clock,
            deadline=self._deadline,
            has_backlog=self._has_backlog,
            level=level,
        )
        return self._levels.setdefault(key, _Level(sender, publisher))
