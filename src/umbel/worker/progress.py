"""Progress notes: the newest of each job, written about once a second."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from umbel.messages import Delivery
from umbel.stores import ProgressNote
from umbel.worker.intake import Intake

_EVERY = 0.5


class ProgressNotes:
    """Keeps the newest note of each job and writes them together."""

    name = "progress"

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._notes: dict[str, ProgressNote] = {}
        self._stopping = False

    def note(self, delivery: Delivery, done: float, of: float | None) -> None:
        """A task says how far it is. Called from any thread; a dict store is one step."""
        lease = delivery.lease
        self._notes[lease.job] = ProgressNote(
            lease.job, lease.fence, float(done), None if of is None else float(of)
        )

    def stop(self) -> None:
        """Write no more."""
        self._stopping = True

    async def run(self, working: Callable[[], None]) -> None:
        """Write what has gathered, now and then."""
        while not self._stopping:
            await anyio.sleep(_EVERY)
            if self._notes:
                notes, self._notes = self._notes, {}
                await self._intake.progress(list(notes.values()))
                working()
