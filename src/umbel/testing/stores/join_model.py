"""A model of joins, in plain Python over dictionaries.

It has no counters: whether a join is complete follows from the states of its parts. The jobs that a
step has to queue are queued in that step. When jobs are cancelled because of a join, and what
follows from that, is up to the adapter until ``advance`` has nothing left to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from umbel.messages import GROUP_HEADER, TERMINAL, Fire, Publication, State
from umbel.messages.joins import cancel_reason


@dataclass(kw_only=True)
class Node:
    """A job in the model."""

    id: str
    group: str
    state: State
    waits: str | None = None
    """The join that it waits for."""
    expires: bool | None = False
    """Whether its expiry has passed; None if that is up to the adapter."""
    is_unwanted: bool = False
    """Whether its cancellation was requested while it ran."""
    reason: str | None = None
    """Why it was cancelled because of a join."""


@dataclass(kw_only=True)
class ModelJoin:
    """A join in the model."""

    id: str
    group: str
    fire: Fire
    held: bool
    parts: dict[int, str] = field(default_factory=dict)


class JoinModel:
    """The jobs and joins of one namespace."""

    def __init__(self) -> None:
        self.jobs: dict[str, Node] = {}
        self.joins: dict[str, ModelJoin] = {}
        self._complete: set[str] = set()
        """The joins that were complete after the last step."""

    # --- questions ----------------------------------------------------------------------------

    def live(self) -> list[Node]:
        """Return the jobs that have not ended."""
        return [job for job in self.jobs.values() if not job.state.finished]

    def idle(self) -> list[Node]:
        """Return the live jobs that do not run."""
        return [job for job in self.live() if job.state is not State.RUNNING]

    def in_state(self, state: State) -> list[str]:
        """Return the ids of the jobs in a state."""
        return [job.id for job in self.jobs.values() if job.state is state]

    def is_complete(self, join: ModelJoin) -> bool:
        """Return whether all parts have ended and the join is sealed."""
        return not join.held and all(self.jobs[p].state.finished for p in join.parts.values())

    def fires(self, join: ModelJoin) -> bool:
        """Return whether a complete join queues its jobs."""
        succeeded = all(self.jobs[p].state is State.SUCCEEDED for p in join.parts.values())
        return join.fire == "all" or (join.fire == "success") == succeeded

    def results(self, join: str) -> list[tuple[int, str, State]]:
        """Return the parts of a join by position."""
        return [(n, job, self.jobs[job].state) for n, job in sorted(self.joins[join].parts.items())]

    def members(self, group: str, *, failed: bool) -> list[tuple[str, int, str, State]]:
        """Return the parts of a group by join and position; on request only those that failed."""
        joins = sorted(join for join in self.joins if self.joins[join].group == group)
        found = [(join, *part) for join in joins for part in self.results(join)]
        wanted = TERMINAL - {State.SUCCEEDED} if failed else State
        return [one for one in found if one[3] in wanted]

    def pending(self) -> list[Node]:
        """Return the blocked jobs whose joins are complete."""
        return [job for job in self.jobs.values() if self._is_pending(job)]

    def needs(self, job: str, join: str) -> bool:
        """Return whether a job can only end after a join is complete."""
        found, seen = [job], set[str]()
        while found:
            waits = self.jobs[one].waits if (one := found.pop()) in self.jobs else None
            if waits == join:
                return True
            if waits is not None and waits not in seen:
                seen.add(waits)
                found += self.joins[waits].parts.values()
        return False

    def is_group_live(self, group: str) -> bool | None:
        """Return whether a job of a group is live. None: only one that belongs to no join."""
        joins = [join for join in self.joins.values() if join.group == group]
        names = {join.id for join in joins}
        related = {part for join in joins for part in join.parts.values()}
        related |= {job.id for job in self.jobs.values() if job.waits in names}
        if any(job.id in related for job in self.live()):
            return True
        return None if any(job.group == group for job in self.live()) else False

    # --- steps --------------------------------------------------------------------------------

    def add(self, publication: Publication, expiring: Collection[str]) -> None:
        """Add a publication."""
        waits = {wait.job: wait.join for wait in publication.waits}
        for join in publication.joins:
            self.joins[join.id] = ModelJoin(
                id=join.id, group=join.group, fire=join.fire, held=join.held
            )
        for envelope in publication.envelopes:
            self.jobs[envelope.id] = Node(
                id=envelope.id,
                group=envelope.headers[GROUP_HEADER],
                state=State.BLOCKED if envelope.id in waits else State.QUEUED,
                waits=waits.get(envelope.id),
                expires=envelope.id in expiring,
            )
        for edge in publication.edges:
            self.joins[edge.join].parts[edge.position] = edge.job
        self._release()

    def end(self, ends: Mapping[str, State]) -> None:
        """End jobs."""
        for job, state in ends.items():
            self.jobs[job].state = state
        self._release()

    def request_cancel(self, job: str) -> None:
        """Remember that a job is to be cancelled, if it runs."""
        node = self.jobs[job]
        node.is_unwanted = node.is_unwanted or node.state is State.RUNNING

    def grow(self, job: str, place: str, publication: Publication) -> bool:
        """End a job with success; a job of the publication takes its place.

        Returns False if the job does not grow because its cancellation was requested.
        """
        if self.jobs[job].is_unwanted:
            self.end({job: State.CANCELLED})
            return False
        for join in self.joins.values():
            join.parts = {n: place if one == job else one for n, one in join.parts.items()}
        self.jobs[job].state = State.SUCCEEDED
        self.add(publication, ())
        return True

    def seal(self, joins: Iterable[str]) -> int:
        """Seal joins; return how many were held."""
        held = [join for join in joins if join in self.joins and self.joins[join].held]
        for join in held:
            self.joins[join].held = False
        self._release()
        return len(held)

    def reopen(self, jobs: Sequence[str]) -> tuple[set[str], set[str]]:
        """Run ended jobs again; return these jobs, and the live ones that are blocked again."""
        named = [job for job in dict.fromkeys(jobs) if self.jobs[job].state.finished]
        back, again, left = [*named], set[str](), [*named]
        while left:
            job = left.pop()
            self.jobs[job].state, self.jobs[job].expires = State.BLOCKED, None
            for node in self._dependents(job):
                if node.id in back or node.state in (State.RUNNING, State.SUCCEEDED):
                    continue
                if node.state.finished:
                    back.append(node.id)
                    left.append(node.id)
                elif node.state is not State.BLOCKED:
                    again.add(node.id)
                node.state = State.BLOCKED
        for job in named:
            waits = self.jobs[job].waits
            if waits is None or self.is_complete(self.joins[waits]):
                self.jobs[job].state = State.QUEUED
        for job in back:
            self.jobs[job].reason, self.jobs[job].is_unwanted = None, False
        self._release()
        return {*back}, again

    def drop(self, group: str) -> None:
        """Remove the joins of a group."""
        gone = {join.id for join in self.joins.values() if join.group == group}
        self.joins = {name: join for name, join in self.joins.items() if name not in gone}
        for job in self.jobs.values():
            job.waits = None if job.waits in gone else job.waits
        self._complete -= gone

    def accept(self, observed: Mapping[str, State]) -> int:
        """Apply what the adapter did with pending jobs; return how many changed."""
        changed = 0
        while found := [job for job in self.pending() if observed[job.id] is self._due(job)]:
            for job in found:
                job.state = self._due(job)
                if job.state is State.CANCELLED:
                    job.reason = cancel_reason(self.joins[job.waits or ""].fire)
                changed += 1
        self._complete = self._complete_now()
        return changed

    def _release(self) -> None:
        """Queue the jobs of joins that this step has completed."""
        now = self._complete_now()
        for job in self.pending():
            join = self.joins[job.waits or ""]
            if join.id not in self._complete and self.fires(join):
                job.state = State.QUEUED
        self._complete = now

    def _complete_now(self) -> set[str]:
        return {join.id for join in self.joins.values() if self.is_complete(join)}

    def _is_pending(self, job: Node) -> bool:
        blocked = job.state is State.BLOCKED and job.waits is not None
        return blocked and self.is_complete(self.joins[job.waits or ""])

    def _due(self, job: Node) -> State:
        return State.QUEUED if self.fires(self.joins[job.waits or ""]) else State.CANCELLED

    def _dependents(self, job: str) -> list[Node]:
        joins = {join.id for join in self.joins.values() if job in join.parts.values()}
        return [node for node in self.jobs.values() if node.waits in joins]
