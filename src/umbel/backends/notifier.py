"""Wake-ups within one event loop: "check now". A wake-up carries no data and may be needless."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class WakeUpListener:
    """Waits for wake-ups. One that comes between ``clear`` and ``wait`` is not lost."""

    __slots__ = ("_event", "topics")

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.topics: set[str] = set()
        """The topics of the wake-ups since the last ``clear``."""

    def clear(self) -> set[str]:
        """Return the topics since the last call, and forget them."""
        topics, self.topics = self.topics, set()
        self._event.clear()
        return topics

    def notify(self, topic: str) -> None:
        """Record a wake-up and end a wait."""
        self.topics.add(topic)
        self._event.set()

    async def wait(self, timeout: float | None) -> bool:
        """Wait for a wake-up. Return False if none came in time."""
        if self._event.is_set():
            return True
        try:
            async with asyncio.timeout(timeout):
                return await self._event.wait()
        except TimeoutError:
            return False


class Notifier:
    """Passes wake-ups to the listeners of their topic."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[WakeUpListener]] = {}

    @contextmanager
    def listen(self, topics: Iterable[str]) -> Iterator[WakeUpListener]:
        """Yield a listener for these topics, which ends with the block."""
        listener, names = WakeUpListener(), list(topics)
        for name in names:
            self._listeners.setdefault(name, []).append(listener)
        try:
            yield listener
        finally:
            for name in names:
                listeners = self._listeners[name]
                listeners.remove(listener)
                if not listeners:
                    del self._listeners[name]

    def notify(self, topic: str) -> None:
        """Wake the listeners of a topic."""
        for listener in self._listeners.get(topic, ()):
            listener.notify(topic)

    def notify_all(self) -> None:
        """Wake all listeners, for example after wake-ups may have been lost."""
        for topic in list(self._listeners):
            self.notify(topic)
