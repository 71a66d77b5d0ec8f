"""Writes the progress of running jobs to the store, about once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from umbel.backends import ProgressNote, Records
from umbel.messages import Delivery

_WRITE_DELAY = 0.5
"""Seconds in which notes are collected before they are written."""


class ProgressNotes:
    """Keeps the newest note of each job and writes all of them together."""

    name = "progress"

    def __init__(self, records: Records) -> None:
        self._records = records
        self._notes: dict[str, ProgressNote] = {}
        self._is_stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_notes = asyncio.Event()

    def note(self, delivery: Delivery, done: float, of: float | None) -> None:
        """Record how far a job is. Safe from any thread: storing into a dict is atomic."""
        lease, is_first = delivery.lease, not self._notes
        self._notes[lease.job] = ProgressNote(
            lease.job, lease.fence, float(done), None if of is None else float(of)
        )
        if is_first and self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended: the caller is an abandoned thread
                self._loop.call_soon_threadsafe(self._has_notes.set)

    def stop(self) -> None:
        """Write no more notes."""
        self._is_stopping = True
        self._has_notes.set()

    async def run(self, working: Callable[[], None]) -> None:
        """Write collected notes; sleep while there are none."""
        self._loop = asyncio.get_running_loop()
        if self._notes:
            self._has_notes.set()
        while not self._is_stopping:
            await self._has_notes.wait()
            self._has_notes.clear()
            await asyncio.sleep(_WRITE_DELAY)
            if self._notes:
                await self.write()
                working()

    async def write(self) -> None:
        """Write the notes collected so far."""
        notes, self._notes = self._notes, {}
        await self._records.record_progress(list(notes.values()))
