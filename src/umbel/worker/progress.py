"""Progress notes: the newest of each job, written about once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from umbel.backends import ProgressNote
from umbel.messages import Delivery
from umbel.worker.intake import Intake

_EVERY = 0.5


class ProgressNotes:
    """Keeps the newest note of each job and writes them together."""

    name = "progress"

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._notes: dict[str, ProgressNote] = {}
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._noted = asyncio.Event()

    def note(self, delivery: Delivery, done: float, of: float | None) -> None:
        """A task says how far it is. Called from any thread; a dict store is one step."""
        lease, first = delivery.lease, not self._notes
        self._notes[lease.job] = ProgressNote(
            lease.job, lease.fence, float(done), None if of is None else float(of)
        )
        if first and self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended: a thread that was left behind
                self._loop.call_soon_threadsafe(self._noted.set)

    def stop(self) -> None:
        """Write no more."""
        self._stopping = True
        self._noted.set()

    async def run(self, working: Callable[[], None]) -> None:
        """Write what has gathered, now and then. Sleeps while nobody says anything."""
        self._loop = asyncio.get_running_loop()
        if self._notes:
            self._noted.set()
        while not self._stopping:
            await self._noted.wait()
            self._noted.clear()
            await asyncio.sleep(_EVERY)
            if self._notes:
                notes, self._notes = self._notes, {}
                await self._intake.progress(list(notes.values()))
                working()
