"""Updates of open pages: each view is read once, however many browsers show it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import suppress

from umbel.clock import Clock, iso_time
from umbel.errors import UmbelError, Unavailable
from umbel.telemetry import Telemetry, events

MAX_STREAMS = 1_000
MAX_STREAMS_PER_USER = 20
_HEARTBEAT_SECONDS = 15.0
_COST_FACTOR = 50
_MAX_SECONDS = 5.0
"""The time between two reads is this many times the time that one takes, up to a maximum."""
_MIN_COST_FACTOR = 4
"""Also of a read that takes long, for each of the views that are read."""
_MAX_FAILED_SECONDS = 15.0
"""The longest pause after a read that has failed: it took long, but cost the store little."""
_MAX_READS = 2
"""How many views are read at a time, so that room remains for pages that are opened."""

Render = Callable[[], Awaitable[str]]


class TooManyStreams(Exception):
    """There are too many open pages. The browser asks again from time to time instead."""


class Update:
    """What browsers are sent: the newest content of a view, or why there is none."""

    def __init__(self, content: str, error: str = "", since: str = "") -> None:
        self.content = content
        self.error = error
        self.since = since


class _Watched:
    """One view that at least one browser shows."""

    def __init__(self) -> None:
        self.update = Update("")
        self.version = 0
        self.changed = asyncio.Condition()
        self.streams = 0
        self.is_due = asyncio.Event()
        self.reading: asyncio.Task[None] | None = None


def pause_seconds(seconds: float, cost: float, views: int) -> float:
    """Return the time until the next read of a view that took ``cost`` seconds.

    All views together take at most a quarter of the time, however many there are.
    """
    return max(seconds, _MIN_COST_FACTOR * cost * views, min(_COST_FACTOR * cost, _MAX_SECONDS))


class LiveViews:
    """Reads the views that browsers show, and tells each browser when one has changed."""

    def __init__(self, clock: Clock, telemetry: Telemetry) -> None:
        self._clock = clock
        self._telemetry = telemetry
        self._views: dict[Hashable, _Watched] = {}
        self._by_user: dict[str, int] = {}
        self._reads = asyncio.Semaphore(_MAX_READS)

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return sum(self._by_user.values())

    async def follow(
        self, key: Hashable, user: str, render: Render, seconds: float
    ) -> AsyncGenerator[Update | None]:
        """Yield the newest content of a view whenever it changes; None from time to time.

        Raises:
            TooManyStreams: no more streams may be opened.
        """
        if self.streams >= MAX_STREAMS or self._by_user.get(user, 0) >= MAX_STREAMS_PER_USER:
            raise TooManyStreams
        self._by_user[user] = self._by_user.get(user, 0) + 1
        view = self._views.setdefault(key, _Watched())
        view.streams += 1
        if view.reading is None:
            view.reading = asyncio.create_task(self._read(view, render, seconds))
        seen = 0
        try:
            while True:
                if view.version == seen:
                    try:
                        async with asyncio.timeout(_HEARTBEAT_SECONDS), view.changed:
                            await view.changed.wait_for(lambda: view.version != seen)  # noqa: B023
                    except TimeoutError:
                        yield None
                        continue
                seen = view.version
                yield view.update
        finally:
            self._leave(key, view, user)

    def _leave(self, key: Hashable, view: _Watched, user: str) -> None:
        self._by_user[user] -= 1
        if not self._by_user[user]:
            del self._by_user[user]
        view.streams -= 1
        if not view.streams:
            self._views.pop(key, None)
            if view.reading is not None:
                view.reading.cancel()

    async def _read(self, view: _Watched, render: Render, seconds: float) -> None:
        failing_since = ""
        while True:
            view.is_due.clear()  # what changes from now on may not be in this read
            async with self._reads:
                started = self._clock.monotonic()
                update = await self._updated(view, render, failing_since, seconds)
                cost = self._clock.monotonic() - started
            failing_since = update.since
            old = view.update
            if not view.version or (update.content, update.error) != (old.content, old.error):
                async with view.changed:
                    view.update = update
                    view.version += 1
                    view.changed.notify_all()
            pause = pause_seconds(seconds, cost, len(self._views))
            if update.error:
                pause = min(pause, _MAX_FAILED_SECONDS)
            elif old.error:
                self._refresh_failed()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await view.is_due.wait()

    async def _updated(
        self, view: _Watched, render: Render, failing_since: str, seconds: float
    ) -> Update:
        """Return the newest content of a view; if it cannot be read, the last one and why."""
        try:
            return Update(await render())
        except UmbelError as error:
            text = "The store is unreachable" if isinstance(error, Unavailable) else str(error)
        except Exception as error:  # noqa: BLE001 - a bug in one view must not end its updates
            what = f"{type(error).__name__}: {error}"
            self._telemetry.emit(
                events.ServiceFailed(service="dashboard", error=what, delay=seconds)
            )
            text = "This page cannot be shown"
        since = failing_since or iso_time(self._clock.now()) or ""
        return Update(view.update.content, text, since)

    def refresh(self) -> None:
        """Read every view now, because something was changed here."""
        for view in self._views.values():
            view.is_due.set()

    def _refresh_failed(self) -> None:
        """Read the views now that could not be read, because the store has answered."""
        for view in self._views.values():
            if view.update.error:
                view.is_due.set()

    async def close(self) -> None:
        """Stop reading."""
        readers = [view.reading for view in self._views.values() if view.reading is not None]
        for reader in readers:
            reader.cancel()
        for reader in readers:
            with suppress(asyncio.CancelledError):
                await reader
