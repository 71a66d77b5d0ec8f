"""The incarnation of a worker: one run of it from start to stop, and the leases that it holds."""

from __future__ import annotations

from umbel.messages import Lease, fresh_id
from umbel.tasks import CurrentWorker


class Incarnation:
    """The worker's name, its present incarnation and the leases that this incarnation holds.

    The main thread writes it; the heartbeat's thread reads it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.index: int | None = None
        """The worker's index, once it is registered."""
        self.id = fresh_id()
        self._worker = CurrentWorker(name)
        self._held: dict[str, Lease] = {}
        self._former: dict[str, None] = {}

    @property
    def worker(self) -> CurrentWorker:
        """The worker as its tasks see it."""
        if self._worker.index != self.index:
            self._worker = CurrentWorker(self.name, self.index)
        return self._worker

    def start_next(self) -> None:
        """Replace a lost incarnation by a new one, which holds no leases yet."""
        self._former[self.id] = None
        self.id = fresh_id()
        self._held = {}

    def hold(self, lease: Lease) -> None:
        """Add a lease of this incarnation; leases of earlier ones are ignored."""
        if lease.owner == self.id:
            self._held[lease.job] = lease

    def release(self, lease: Lease) -> None:
        """Remove a lease whose job is settled; leases of earlier incarnations are ignored."""
        if self._held.get(lease.job) == lease:
            del self._held[lease.job]

    def held(self) -> list[Lease]:
        """Return the leases held now. Atomic in the interpreter, so safe from any thread."""
        return list(self._held.values())

    def former(self) -> tuple[str, ...]:
        """Return incarnations that this process outlived and has not reported yet."""
        return tuple(self._former)

    def forget_former(self, reported: tuple[str, ...]) -> None:
        """Drop former incarnations that the registry knows now. Safe from any thread."""
        for incarnation in reported:
            self._former.pop(incarnation, None)

    def __len__(self) -> int:
        return len(self._held)
