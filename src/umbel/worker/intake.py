"""The worker's only port: a router in the same process, or a link to one elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from umbel.brokers import Demand
from umbel.messages import Delivery, Lease, Settlement
from umbel.stores import ControlState, ProgressNote, WorkerEntry


class Intake(Protocol):
    """Fetch, extend, settle, and the worker's own life. Belongs to one event loop."""

    async def enlist(self, worker: WorkerEntry) -> None:
        """Begin a life, before the first fetch."""

    async def leave(self, incarnation: str) -> None:
        """End it, after the last settlement."""

    async def fetch(self, owner: str, demand: Demand, wait: float) -> list[Delivery]:
        """What may start now. Raises LeaseLost when the life is over, Unavailable."""

    def nudge(self) -> None:
        """Make a fetch that waits return now."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        """Record outcomes; returns the leases that were refused. Raises Unavailable."""

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

    async def control_changed(self, wait: float) -> bool:
        """Wait for a hint that control changed."""

    async def waiting(self, kinds: Sequence[str]) -> bool:
        """Whether a fetch of these kinds would find something."""

    async def close(self) -> None:
        """Free connections."""
