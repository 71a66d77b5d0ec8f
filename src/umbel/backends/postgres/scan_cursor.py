"""Which lanes may have work, as far as hints tell: an empty lane is not asked again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from umbel.backends.postgres.listener import Listener
from umbel.backends.postgres.statements import Row
from umbel.messages import KINDS

SLOW = 0.02
"""Seconds above which a look from the start is not made every time."""
RARELY = 20
NEVER = float("inf")
SOON = 0.01
"""Seconds until the next look at gates where somebody may pass and nobody did."""


def room(free: dict[str, int], kind: str) -> int:
    """How many jobs of a kind could start.

    A sender that does not know the task may mean either kind: both must have room.
    """
    return free[kind] if kind else min(free.values())


class Mark(NamedTuple):
    """Where a lane's last look ended: nothing of this priority waits at or before this number."""

    priority: int = -100_000  # below all: everything is yet to be looked at
    seq: int = 0


class Tail:
    """Where the next look at a queue begins while looks from its start are slow.

    That happens when PostgreSQL may not remove dead index entries: somebody, in any database of
    the server, has kept a transaction open. Each claim would step over all jobs claimed since.
    So looks go on where the last one ended, and one from the start is made now and then: for a
    twentieth of the time, whatever it costs. What came back to its old place waits for that.
    """

    def __init__(self) -> None:
        self.marks: dict[str, Mark] | None = None
        """By kind. None: look from the start."""
        self.until = 0.0
        """When a look from the start is due again."""
        self.knock = 0
        """The last knock at a gate when the last look from the start was made."""

    def looked(self, took: float, now: float, rows: Sequence[Row], knock: int | None) -> None:
        """Note a look from the start that took so long and gave these."""
        self.knock = knock or 0
        self.marks = {"io": Mark(), "cpu": Mark()} | _marks(rows) if took > SLOW else None
        self.until = now + RARELY * took

    def went_on(self, rows: Sequence[Row]) -> None:
        """Note what a look from the marks gave."""
        if self.marks is not None:
            self.marks |= _marks(rows)

    def begin(self, now: float) -> dict[str, Mark] | None:
        """The marks to go on from; None: from the start."""
        return self.marks if now < self.until else None


def _marks(rows: Sequence[Row]) -> dict[str, Mark]:
    ordered = sorted(rows, key=lambda row: (-row[4], row[0]))
    return {row[2]: Mark(row[4], row[0]) for row in ordered if row[2]}


class ScanCursor:
    """What is known of some queues between two looks.

    A lane is a queue and a kind. It leaves when a look took all it had, and comes back with the
    next hint. Hints are put away before a look, so one that arrives during it is not lost.
    """

    def __init__(self, namespace: str, queues: Sequence[str], listener: Listener) -> None:
        self.queues = tuple(queues)
        self.listener = listener
        self.due = 0.0
        """Monotonic time at which something scheduled becomes due; in the past when unknown."""
        self.without: frozenset[str] = frozenset()
        """Tasks that the last look has left alone."""
        self._ready = {f"r:{namespace}:{queue}": queue for queue in queues}
        self._scheduled, self._control = f"s:{namespace}", f"c:{namespace}"
        self._freed = f"g:{namespace}"
        self._lines: dict[str, float] = {}
        self._lanes: set[tuple[str, str]] = set()
        self._tails = {queue: Tail() for queue in queues}
        self._looked = float("-inf")
        self._stack = ExitStack()
        topics = [*self._ready, self._scheduled, self._control, self._freed]
        self._ear = self._stack.enter_context(listener.bell.listen(topics))

    def listen(self, now: float, trusted_for: float) -> None:
        """Take in what was heard; doubt everything when nothing was for too long."""
        for topic in self._ear.clear():
            if topic in self._ready:
                self.expect(self._ready[topic])
            elif topic == self._scheduled:
                self.due = 0.0
            elif topic == self._control:  # something was resumed, perhaps
                self.doubt()
            elif topic == self._freed:  # concerns those alone into which somebody wants to pass
                self._lines = dict.fromkeys(self._lines, 0.0)
        for queue, at in self._lines.items():
            if now >= at:
                self.expect(queue)
        for queue, tail in self._tails.items():
            if tail.marks is not None and now >= tail.until:
                self.expect(queue)
        if not self.listener.hearing or now - self._looked >= trusted_for:
            self.doubt()
            self._looked = now

    def doubt(self) -> None:
        """Anything may have happened."""
        self.due = 0.0
        for queue in self.queues:
            self.expect(queue)

    @property
    def full_look(self) -> float:
        """Monotonic time at which some queue has to be looked at from its start."""
        return min((t.until for t in self._tails.values() if t.marks), default=float("inf"))

    def tail(self, queue: str) -> Tail:
        """Where looks at this queue begin."""
        return self._tails[queue]

    @property
    def passing(self) -> float:
        """Monotonic time at which somebody may pass a gate into some queue."""
        return min(self._lines.values(), default=NEVER)

    def may_pass(self, queue: str, now: float) -> bool:
        """Whether somebody may pass a gate into this queue."""
        return self._lines.get(queue, NEVER) <= now

    def stand(self, queue: str, at: float | None) -> None:
        """Note when somebody may pass a gate into a queue; None: nobody wants to."""
        if at is None:
            self._lines.pop(queue, None)
        else:
            self._lines[queue] = at

    def expect(self, queue: str) -> None:
        """All lanes of a queue may have work."""
        self._lanes.update((queue, kind) for kind in KINDS)

    def enter(self, queue: str, free: dict[str, int]) -> bool:
        """Whether a look at the queue is worth it with this room; those lanes count as seen."""
        lanes = {(queue, kind) for kind in KINDS if room(free, kind) > 0} & self._lanes
        self._lanes -= lanes
        return bool(lanes)

    def leave(self, queue: str, free: dict[str, int], taken: Counter[str], held_back: bool) -> None:
        """Note what a look took: ``free`` shrinks, and a lane that filled it may have more."""
        if held_back or taken[""] >= room(free, ""):
            self._lanes.add((queue, ""))
        for kind in free:
            free[kind] -= taken[""] + taken[kind]
            if free[kind] <= 0:
                self._lanes.add((queue, kind))
        if taken:
            self.wake()  # another fetch may have found the lane in our hands

    async def wait(self, timeout: float) -> None:
        """Until a hint comes, or the time is over."""
        await self._ear.wait(timeout)

    def wake(self) -> None:
        """End the wait, for no reason that concerns the lanes."""
        self._ear.ring("")

    def close(self) -> None:
        """Hear no more."""
        self._stack.close()
