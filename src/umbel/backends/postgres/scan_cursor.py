"""Which lanes may have work, according to wake-ups: an empty lane is not queried repeatedly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from umbel.backends.broker import Demand, needed
from umbel.backends.postgres.listener import Listener
from umbel.backends.sql.statements import Row
from umbel.messages import KINDS

SLOW_SCAN_SECONDS = 0.02
"""A scan from the start that takes longer than this is not made every time."""
FULL_SCAN_FACTOR = 20
MAX_FULL_SCAN_DELAY_SECONDS = 10.0
"""Nodes of graphs are queued at their old place, so that only a scan from the start finds them. It
is made as often as the safety poll, also when a busy server has answered slowly."""
NEVER = float("inf")
GATE_RETRY_SECONDS = 0.01
"""Delay before gates are checked again where a job may pass and none did."""


class Mark(NamedTuple):
    """Where the last scan of a lane ended: at this priority, no job waits up to this number."""

    priority: int = -100_000  # below all priorities: nothing was scanned yet
    seq: int = 0


class ScanPosition:
    """Where the next scan of a queue begins while scans from its start are slow.

    They are slow when PostgreSQL may not remove dead index entries, because a transaction is open
    for long in any database of the server. Each claim would then step over all jobs claimed since.
    So scans continue where the last one ended. A scan from the start is made now and then, so that
    it takes a twentieth of the time, and at least every ten seconds. Jobs that returned to their
    old place wait for that one.
    """

    def __init__(self) -> None:
        self.marks: dict[str, Mark] | None = None
        """By kind. None: scan from the start."""
        self.until = 0.0
        """When the next scan from the start is due."""
        self.gate_event = 0
        """The last number in ``gate_event`` at the time of the last scan from the start."""

    def record_full_scan(
        self, took: float, now: float, rows: Sequence[Row], gate_event: int | None
    ) -> None:
        """Record the duration and the rows of a scan from the start."""
        self.gate_event = gate_event or 0
        self.marks = _marks(rows) if took > SLOW_SCAN_SECONDS else None
        self.until = now + min(FULL_SCAN_FACTOR * took, MAX_FULL_SCAN_DELAY_SECONDS)

    def record_partial_scan(self, rows: Sequence[Row]) -> None:
        """Record the rows of a scan from the marks."""
        if self.marks is not None:
            self.marks |= _marks(rows)

    def begin(self, now: float) -> dict[str, Mark] | None:
        """Return the marks to continue from; None for a scan from the start."""
        return self.marks if now < self.until else None


def _marks(rows: Sequence[Row]) -> dict[str, Mark]:
    ordered = sorted(rows, key=lambda row: (-row[4], row[0]))
    return {row[2]: Mark(row[4], row[0]) for row in ordered if row[2]}


class ScanCursor:
    """What is known of some queues between two scans.

    A lane is a queue and a kind. It is removed when a scan has taken all of its jobs, and added
    again by the next wake-up. Wake-ups are read before a scan, so one that arrives during the scan
    is not lost.
    """

    def __init__(self, namespace: str, queues: Sequence[str], listener: Listener) -> None:
        self.queues = tuple(queues)
        self.listener = listener
        self.due = 0.0
        """Monotonic time at which the next scheduled job is due; in the past if unknown."""
        self.without: frozenset[str] = frozenset()
        """Tasks that the last scan left out."""
        self._ready = {f"r:{namespace}:{queue}": queue for queue in queues}
        self._scheduled, self._control = f"s:{namespace}", f"c:{namespace}"
        self._freed = f"g:{namespace}"
        self._gate_checks: dict[str, float] = {}
        self._lanes: set[tuple[str, str]] = set()
        self._positions = {queue: ScanPosition() for queue in queues}
        self._looked = float("-inf")
        self._stack = ExitStack()
        topics = [*self._ready, self._scheduled, self._control, self._freed]
        self._wake_ups = self._stack.enter_context(listener.notifier.listen(topics))

    def read_wake_ups(self, now: float, trusted_for: float) -> None:
        """Apply the wake-ups so far. Expect work in all lanes if there were none for too long."""
        for topic in self._wake_ups.clear():
            if topic in self._ready:
                self.expect(self._ready[topic])
            elif topic == self._scheduled:
                self.due = 0.0
            elif topic == self._control:  # perhaps a queue or task was resumed
                self.expect_all()
            elif topic == self._freed:  # only queues with a waiting list at a gate
                self._gate_checks = dict.fromkeys(self._gate_checks, 0.0)
        for queue, at in self._gate_checks.items():
            if now >= at:
                self.expect(queue)
        for queue, position in self._positions.items():
            if position.marks is not None and now >= position.until:
                self.expect(queue)
        if not self.listener.is_listening or now - self._looked >= trusted_for:
            self.expect_all()
            self._looked = now

    def expect_all(self) -> None:
        """Expect work in all lanes."""
        self.due = 0.0
        for queue in self.queues:
            self.expect(queue)

    @property
    def next_full_scan(self) -> float:
        """Monotonic time of the next scan of a queue from its start."""
        slow = (one.until for one in self._positions.values() if one.marks is not None)
        return min(slow, default=NEVER)

    def position(self, queue: str) -> ScanPosition:
        """Return where scans of this queue begin."""
        return self._positions[queue]

    @property
    def next_gate_check(self) -> float:
        """Monotonic time at which a job may pass a gate into one of the queues."""
        return min(self._gate_checks.values(), default=NEVER)

    def is_gate_check_due(self, queue: str, now: float) -> bool:
        """Return whether a job may pass a gate into this queue now."""
        return self._gate_checks.get(queue, NEVER) <= now

    def set_gate_check(self, queue: str, at: float | None) -> None:
        """Record when a job may pass a gate into a queue; None if no job waits at one."""
        if at is None:
            self._gate_checks.pop(queue, None)
        else:
            self._gate_checks[queue] = at

    def expect(self, queue: str) -> None:
        """Expect work in all lanes of a queue."""
        self._lanes.update((queue, kind) for kind in KINDS)

    def start_scan(self, queue: str, free: dict[str, int]) -> bool:
        """Return whether to scan the queue with these free slots, and mark its lanes as scanned."""
        lanes = {(queue, kind) for kind in KINDS if Demand(free).capacity(kind) > 0} & self._lanes
        self._lanes -= lanes
        return bool(lanes)

    def finish_scan(
        self, queue: str, free: dict[str, int], taken: Counter[str], held_back: bool
    ) -> None:
        """Record the jobs taken: reduce ``free``, and expect more in a lane that filled it."""
        if held_back or taken[""] >= Demand(free).capacity(""):
            self._lanes.add((queue, ""))
        for kind in free:
            free[kind] -= taken[kind] + (taken[""] if kind in needed("") else 0)
            if free[kind] <= 0:
                self._lanes.add((queue, kind))
        if taken:
            self.wake()  # another fetch may have skipped the lane because of this scan

    async def wait(self, timeout: float) -> None:
        """Wait for a wake-up or the timeout."""
        await self._wake_ups.wait(timeout)

    def wake(self) -> None:
        """End the wait without expecting work in any lane."""
        self._wake_ups.notify("")

    def close(self) -> None:
        """Stop listening."""
        self._stack.close()
