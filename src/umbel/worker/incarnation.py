"""One life of a worker: its incarnation, and what it holds."""

from __future__ import annotations

from umbel.messages import Lease, fresh_id
from umbel.tasks import Place


class Life:
    """Name, incarnation and held leases. Read by the heart's thread, written by the main one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.index: int | None = None
        """Where it sits, once it is enlisted; written by whoever enlists it."""
        self._place = Place(name)
        self.incarnation = fresh_id()
        self._held: dict[str, Lease] = {}
        self._former: dict[str, None] = {}

    @property
    def place(self) -> Place:
        """What tasks see of it."""
        if self._place.index != self.index:
            self._place = Place(self.name, self.index)
        return self._place

    def begin_anew(self) -> None:
        """A new incarnation that holds nothing. The one before it is to be reported."""
        self._former[self.incarnation] = None
        self.incarnation = fresh_id()
        self._held = {}

    def hold(self, lease: Lease) -> None:
        """Count it among what this life is responsible for."""
        if lease.owner == self.incarnation:
            self._held[lease.job] = lease

    def release(self, lease: Lease) -> None:
        """It is settled. A lease of an earlier life is none of ours."""
        if self._held.get(lease.job) == lease:
            del self._held[lease.job]

    def held(self) -> list[Lease]:
        """What is held at this moment; one step for the interpreter, so safe from any thread."""
        return list(self._held.values())

    def former(self) -> tuple[str, ...]:
        """Incarnations that ended while this process was alive, and were not reported yet."""
        return tuple(self._former)

    def reported(self, former: tuple[str, ...]) -> None:
        """The registry knows of these. Safe from any thread, as ``former`` and ``held`` are."""
        for incarnation in former:
            self._former.pop(incarnation, None)

    def __len__(self) -> int:
        return len(self._held)
