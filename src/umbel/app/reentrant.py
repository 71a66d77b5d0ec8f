"""What publishes for calls that are made inside another call of the same thread.

It has connections and locks of its own, and a thread of its own that uses them: the outer call may
hold the ordinary ones, and is suspended until the inner call has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from umbel.backends import Broker, Published, Roles
from umbel.clock import Clock
from umbel.errors import Unavailable
from umbel.messages import Envelope
from umbel.publisher import Bridge, Publisher, ReentrantForwarder, Send

T = TypeVar("T")


class _Opened(NamedTuple):
    backend: Roles
    bridge: Bridge
    forwarder: ReentrantForwarder | None
    send: Send


class Reentrant:
    """The parts of one level above the ordinary ones: see ``drivers.reentry``. Opened on first use.

    ``sends`` gives how to publish with a broker and a bridge, ``forwards`` the forwarder for that;
    None where nothing is kept.
    """

    def __init__(
        self,
        level: int,
        opens: Callable[[], Roles],
        sends: Callable[[Broker, Bridge], Send],
        forwards: Callable[[Send], ReentrantForwarder | None],
        clock: Clock,
        *,
        deadline: float,
        keeps: bool,
    ) -> None:
        self._level = level
        self._opens = opens
        self._sends = sends
        self._forwards = forwards
        self._publisher = Publisher(self._send, clock, deadline=deadline, keeps=keeps, level=level)
        self._opened: dict[str, _Opened] = {}
        """One or none: to fill a dictionary takes no lock."""

    def publish(self, envelopes: Sequence[Envelope]) -> list[Published]:
        """See ``Publisher.publish``. Waits for no lock."""
        return self._publisher.publish_elsewhere(envelopes)

    def ask(self, question: Callable[[Roles], Coroutine[Any, Any, T]], timeout: float) -> T:
        """What these adapters answer. Raises TimeoutError."""
        opened = self._ready()
        return opened.bridge.run(question(opened.backend), timeout)

    def close(self) -> None:
        """Close what is open. The next call opens it anew."""
        self._publisher.close()
        opened = self._opened.pop("opened", None)
        if opened is not None:
            if opened.forwarder is not None:
                opened.forwarder.close()
            with suppress(TimeoutError, Unavailable):
                opened.bridge.run(opened.backend.close(), timeout=5)
            opened.bridge.close()

    def _send(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        """Publish, in the thread of this level's courier."""
        return self._ready().send(envelopes, timeout)

    def _ready(self) -> _Opened:
        return self._opened.get("opened") or self._opened.setdefault("opened", self._open())

    def _open(self) -> _Opened:
        backend, bridge = self._opens(), Bridge(self._level)
        send = self._sends(backend.broker, bridge)
        forwarder = self._forwards(send)
        return _Opened(backend, bridge, forwarder, forwarder.send if forwarder else send)
