"""Hints within one event loop: "look now". A hint carries no work and may come too often."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class WakeUpListener:
    """One listener's latch. A ring between ``clear`` and ``wait`` is not lost."""

    __slots__ = ("_event", "heard")

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.heard: set[str] = set()

    def clear(self) -> set[str]:
        """Forget what was heard, and return it."""
        heard, self.heard = self.heard, set()
        self._event.clear()
        return heard

    def ring(self, topic: str) -> None:
        """Note a hint and wake whoever waits."""
        self.heard.add(topic)
        self._event.set()

    async def wait(self, timeout: float | None) -> bool:
        """Wait for a ring. False when none came in time."""
        if self._event.is_set():
            return True
        try:
            async with asyncio.timeout(timeout):
                return await self._event.wait()
        except TimeoutError:
            return False


class Notifier:
    """Passes hints to the ears that asked for their topic."""

    def __init__(self) -> None:
        self._ears: dict[str, list[WakeUpListener]] = {}

    @contextmanager
    def listen(self, topics: Iterable[str]) -> Iterator[WakeUpListener]:
        """An ear for these topics, from now until the block ends."""
        ear, names = WakeUpListener(), list(topics)
        for name in names:
            self._ears.setdefault(name, []).append(ear)
        try:
            yield ear
        finally:
            for name in names:
                ears = self._ears[name]
                ears.remove(ear)
                if not ears:
                    del self._ears[name]

    def ring(self, topic: str) -> None:
        """Wake those who listen to the topic."""
        for ear in self._ears.get(topic, ()):
            ear.ring(topic)

    def ring_all(self) -> None:
        """Wake everybody: something happened and nobody knows what."""
        for topic in list(self._ears):
            self.ring(topic)
