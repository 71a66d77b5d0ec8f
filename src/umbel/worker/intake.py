"""The worker's only port: a router in the same process, or a link to one elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from umbel.backends import ControlState, Demand, Hearing, PoolMember, ProgressNote, WorkerEntry
from umbel.messages import Delivery, Kept, Lease, Rule, Settlement, Step


class Intake(Protocol):
    """Fetch, extend, settle, and the worker's own life. Belongs to one event loop."""

    async def enlist(self, worker: WorkerEntry) -> int:
        """Begin a life, before the first fetch. Returns its index. Raises IndexTaken."""

    async def leave(self, incarnation: str) -> None:
        """End it, after the last settlement."""

    async def fetch(
        self, owner: str, demand: Demand, wait: float, own: Sequence[str] = ()
    ) -> list[Delivery]:
        """What may start now, from the worker's own queues first.

        Raises LeaseLost when the life is over, Unavailable.
        """

    async def witness(self, messages: Mapping[str, float]) -> dict[str, Hearing]:
        """Note messages to this worker alone; was each heard before? Raises Unavailable."""

    async def hold(self, incarnation: str, reason: str) -> None:
        """Pause the worker whose life this is, as an operator would."""

    def nudge(self) -> None:
        """Make a fetch that waits return now."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        """Record outcomes; returns the leases that were refused. Raises Unavailable."""

    async def declare(
        self,
        rules: Sequence[Rule],
        tasks: Sequence[str],
        members: Mapping[str, Mapping[str, dict[str, Any]]],
    ) -> None:
        """What gates go by from now on, and which members the code names for each pool.

        ``tasks`` are known with all the gates they have: others that they had are lifted.
        """

    async def suspect(self, pool: str, member: str, failures: int) -> None:
        """A member failed its check, after so many before; the next one is due later each time."""

    async def suspects(self, pool: str, delay: float) -> list[PoolMember]:
        """Members that are to be checked now, by the caller and for so long by nobody else."""

    async def restore(self, pool: str, member: str) -> None:
        """A member passed its check."""

    async def steps(self, job: str) -> list[Step]:
        """What is kept of a job that ran before, by number. Raises Unavailable."""

    async def keep(self, done: Sequence[Kept]) -> list[Kept]:
        """Keep steps; returns those whose lease is lost. Safe to repeat. Raises Unavailable."""

    async def progress(self, notes: Sequence[ProgressNote]) -> None:
        """Note how far running jobs are."""

    async def beat(self, incarnation: str, *, running: int, epoch: int, stopping: bool) -> bool:
        """One heartbeat; False when the life is over."""

    async def sort(self, kinds: Mapping[str, str]) -> int:
        """Tell what kind each task is, for jobs whose sender did not know."""

    async def extend(self, owner: str, held: Sequence[Lease], older_than: float) -> list[Lease]:
        """Say what is held; learn what is lost."""

    async def cancellations(self, jobs: Sequence[str]) -> dict[str, str]:
        """Which running jobs are to be stopped, and why."""

    async def control(self) -> ControlState:
        """What is paused, and since which epoch."""

    async def control_changed(self, since: int, wait: float) -> bool:
        """Wait for a hint that control changed since that epoch."""

    async def waiting(self, kinds: Sequence[str], without: Sequence[str] = ()) -> bool:
        """Whether a fetch of these kinds, apart from some tasks, would find something."""

    async def lacks(self, tasks: Sequence[str]) -> list[str]:
        """The worker was given jobs of tasks that it does not have.

        Returns those that no running worker has: their jobs wait until one is there. Safe to
        repeat.
        """

    async def close(self) -> None:
        """Free connections."""
