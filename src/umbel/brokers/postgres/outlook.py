"""Which lanes may have work, as far as hints tell: an empty lane is not asked again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

from umbel.drivers.postgres import Listener

KINDS = ("", "io", "cpu")


def room(free: dict[str, int], kind: str) -> int:
    """How many jobs of a kind could start.

    A sender that does not know the task may mean either kind: both must have room.
    """
    return free[kind] if kind else min(free.values())


class Outlook:
    """What is known of some queues between two looks.

    A lane is a queue and a kind. It leaves when a look took all it had, and comes back with the
    next hint. Hints are put away before a look, so one that arrives during it is not lost.
    """

    def __init__(self, namespace: str, queues: Sequence[str], listener: Listener) -> None:
        self.queues = tuple(queues)
        self.listener = listener
        self.due = 0.0
        """Monotonic time at which something scheduled becomes due; in the past when unknown."""
        self._ready = {f"r:{namespace}:{queue}": queue for queue in queues}
        self._scheduled, self._control = f"s:{namespace}", f"c:{namespace}"
        self._lanes: set[tuple[str, str]] = set()
        self._looked = float("-inf")
        self._stack = ExitStack()
        topics = [*self._ready, self._scheduled, self._control]
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
        if not self.listener.hearing or now - self._looked >= trusted_for:
            self.doubt()
            self._looked = now

    def doubt(self) -> None:
        """Anything may have happened."""
        self.due = 0.0
        for queue in self.queues:
            self.expect(queue)

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
