"""Graphs of tests: jobs that wait for each other, and a worker that ends them one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from umbel.backends import Published
from umbel.messages import (
    GROUP_HEADER,
    Delivery,
    Edge,
    Envelope,
    Fire,
    Join,
    Lease,
    Member,
    Outcome,
    PartResult,
    Publication,
    State,
    Succeeded,
    Wait,
    fresh_id,
)
from umbel.testing.actions import RESULT, claim, envelope, register, settle
from umbel.testing.backend import Adapters

_FETCH_SECONDS = 10.0


class Graph:
    """A publication that a test builds. All of its jobs and joins have one group."""

    def __init__(self, b: Adapters, group: str = "") -> None:
        self._b = b
        self.group = group or fresh_id()
        self.envelopes: list[Envelope] = []
        self.joins: list[Join] = []
        self.edges: list[Edge] = []
        self.waits: list[Wait] = []

    def job(self, after: Join | None = None, **changes: Any) -> Envelope:
        """Add a job. With ``after``, it waits for that join."""
        headers = {GROUP_HEADER: self.group}
        made = envelope(self._b, **{"headers": headers, **changes})
        self.envelopes.append(made)
        if after is not None:
            self.waits.append(Wait(made.id, after.id))
        return made

    def jobs(self, count: int, after: Join | None = None, **changes: Any) -> list[Envelope]:
        """Add several jobs."""
        return [self.job(after, **changes) for _ in range(count)]

    def join(
        self, *parts: Envelope | Delivery | str, fire: Fire = "all", held: bool = False
    ) -> Join:
        """Add a join with these parts at the positions 0, 1, …"""
        made = Join(fresh_id(), self.group, fire, held)
        self.joins.append(made)
        self.edge(made, *parts)
        return made

    def edge(self, join: Join, *parts: Envelope | Delivery | str, first: int = 0) -> None:
        """Add parts to a join, from a position on."""
        names = [part if isinstance(part, str) else part.id for part in parts]
        self.edges += [Edge(name, join.id, first + n) for n, name in enumerate(names)]

    def publication(self) -> Publication:
        """Return all of it."""
        return Publication(
            envelopes=tuple(self.envelopes),
            joins=tuple(self.joins),
            edges=tuple(self.edges),
            waits=tuple(self.waits),
        )

    async def add(self) -> list[Published]:
        """Add all of it to the store."""
        return await self._b.joins.add(self.publication())


class OneWorker:
    """A worker that fetches everything and ends the jobs that a test names."""

    def __init__(self, b: Adapters, owner: str) -> None:
        self._b = b
        self.owner = owner
        self.held: dict[str, Delivery] = {}

    @classmethod
    async def start(cls, b: Adapters) -> OneWorker:
        """Register a worker."""
        return cls(b, await register(b))

    async def fetch(self, wait: float = 0.0) -> list[str]:
        """Claim what can be claimed; return the ids."""
        found = await claim(self._b, self.owner, wait=wait)
        self.held |= {one.id: one for one in found}
        return [one.id for one in found]

    async def holds(self, *jobs: Envelope) -> list[Delivery]:
        """Fetch until it holds these jobs."""
        while any(job.id not in self.held for job in jobs):
            if not await self.fetch(_FETCH_SECONDS):
                raise AssertionError(
                    f"never fetched: {[j.id for j in jobs if j.id not in self.held]}"
                )
        return [self.held[job.id] for job in jobs]

    async def end(
        self, job: Envelope, outcome: Outcome | None = None, **changes: Any
    ) -> list[Lease]:
        """Fetch and settle one job; return the leases that were refused."""
        (delivery,) = await self.holds(job)
        del self.held[job.id]
        return await settle(self._b, delivery, outcome or Succeeded(RESULT), **changes)


async def advance(b: Adapters) -> int:
    """Queue or cancel all that is left to do; return how many."""
    total = 0
    while many := await b.joins.advance():
        total += many
    return total


async def state(b: Adapters, job: Envelope | str) -> State:
    """Return the state of a job."""
    return (await b.records.find(job if isinstance(job, str) else job.id)).state


async def states(b: Adapters, *jobs: Envelope | str) -> list[State]:
    """Return the states of jobs."""
    return [await state(b, job) for job in jobs]


async def reason(b: Adapters, job: Envelope) -> str:
    """Return why a job ended."""
    return (await b.records.find(job.id)).reason


async def parts(b: Adapters, join: Join) -> list[tuple[int, str, State]]:
    """Return the positions, jobs and states of a join's parts."""
    return [(one.position, one.job, one.state) for one in await results(b, join)]


async def results(b: Adapters, join: Join) -> list[PartResult]:
    """Return all parts of a join."""
    return await b.joins.results(join.id)


async def members(
    b: Adapters, group: str, page: int = 1_000, *, failed: bool = False
) -> list[Member]:
    """Return all parts of a group, read in pages."""
    found: list[Member] = []
    while True:
        after = (found[-1].join, found[-1].position) if found else ("", -1)
        some = await b.joins.members(group, after, page, failed)
        found += some
        if len(some) < page:
            return found


def names(jobs: Iterable[Envelope]) -> list[str]:
    """Return the ids of jobs, sorted."""
    return sorted(job.id for job in jobs)
