"""The role that lets jobs wait for other jobs; see ``messages.joins``.

Counting is part of the step in which a job ends, in every adapter: an outcome, a burial, a
cancellation, an expiry, a replacement. So no crash can separate the end of a job from its joins.

The step that completes a join also queues its waiting jobs, up to a number. ``advance`` does what
is left: the rest of them, and the jobs that can no longer run, whose ends may complete further
joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from umbel.backends.broker import Published
from umbel.backends.coordination import check_times
from umbel.backends.records import UNCHANGED, Changes
from umbel.errors import ConfigurationError
from umbel.messages import Cancelled, Failed, Succeeded
from umbel.messages.joins import Growth, Member, PartResult, Publication

MAX_RELEASED = 1_000
"""How many jobs one step queues or cancels because of joins."""
UNSEALED_SECONDS = 3_600.0
"""Seconds after which a join that was never sealed is abandoned."""
NEVER_SEALED = "its publication was never completed"
"""Why the jobs of such a join were cancelled."""

MAX_PUBLICATION = 10_000
"""How many jobs and edges one publication may have."""

Resolution = Succeeded | Failed | Cancelled


def check_publication(publication: Publication) -> None:
    """Raise ConfigurationError if a publication contradicts itself or is too large."""
    jobs = {envelope.id for envelope in publication.envelopes}
    size = len(publication.envelopes) + len(publication.edges)
    if size > MAX_PUBLICATION:
        raise ConfigurationError(
            f"publication: {size:,} jobs and edges; at most {MAX_PUBLICATION:,} are allowed, so add"
            " it in chunks under a held join"
        )
    if len(jobs) < len(publication.envelopes):
        raise ConfigurationError("envelopes: two of them have the same id; give each its own")
    waiting = [wait.job for wait in publication.waits]
    for job in waiting:
        if job not in jobs:
            raise ConfigurationError(f"waits: job {job} is not in the publication; add it there")
    if len({*waiting}) < len(waiting):
        raise ConfigurationError("waits: a job waits for two joins; add all parts to one join")
    check_times(publication.envelopes)
    _check_cycles(publication)
    positions = {(edge.join, edge.position) for edge in publication.edges}
    if len(positions) < len(publication.edges):
        raise ConfigurationError("edges: two parts of a join have the same position")


def check_namespace(publication: Publication, namespace: str) -> None:
    """Raise ConfigurationError if a job of a publication is in another namespace."""
    for envelope in publication.envelopes:
        if envelope.namespace != namespace:
            raise ConfigurationError(
                f"namespace={envelope.namespace!r} of job {envelope.id}: jobs that wait for each"
                f" other are in one namespace; give {namespace!r}"
            )


def check_growth(growth: Growth) -> None:
    """Raise ConfigurationError if a growth cannot replace a job."""
    check_publication(growth.publication)
    if all(envelope.id != growth.replacement for envelope in growth.publication.envelopes):
        raise ConfigurationError(
            f"replacement={growth.replacement!r} of a growth: give the id of a job in its"
            " publication"
        )


def _check_cycles(publication: Publication) -> None:
    """Raise ConfigurationError if a job waits, directly or not, for itself."""
    waiting_for = {wait.job: wait.join for wait in publication.waits}
    parts: dict[str, set[str]] = {}
    for edge in publication.edges:
        parts.setdefault(edge.join, set()).add(edge.job)
    left = {job: parts.get(join, set()) & waiting_for.keys() for job, join in waiting_for.items()}
    followers: dict[str, list[str]] = {}
    for job, before in left.items():
        for part in before:
            followers.setdefault(part, []).append(job)
    counts = {job: len(before) for job, before in left.items()}
    ready = [job for job, count in counts.items() if count == 0]
    done = 0
    while ready:
        done += 1
        for job in followers.get(ready.pop(), ()):
            counts[job] -= 1
            if counts[job] == 0:
                ready.append(job)
    if done < len(counts):
        stuck = min(job for job, count in counts.items() if count > 0)
        raise ConfigurationError(f"waits: job {stuck} waits for itself; remove an edge")


class Joins(Protocol):
    """Stores joins. All methods are safe to repeat.

    A settlement with a ``Growth`` adds a publication in the step that ends its job, unless the
    cancellation of that job was requested. So once all jobs of a graph have ended or were asked to
    stop, no job is added to it by a job that still runs.
    """

    async def add(self, publication: Publication, within: Any = None) -> list[Published]:
        """Add joins, jobs and edges, all or none; return the result for each envelope.

        With ``within``, they are part of the caller's transaction, as in ``Broker.publish``. An
        edge from a job that has ended counts at once. A job whose unique key is taken becomes a
        cancelled record that names the holder. If the first envelope is known, the publication was
        added before and nothing changes.

        Raises:
            UnknownJob: an edge names a job that does not exist. Nothing was added.
            ConfigurationError: a wait or edge names an unknown join, or a wait an unknown job.
            Unavailable: either all of it happened or none of it.
        """

    def add_within(self, publication: Publication, connection: Any) -> list[Published]:
        """``add`` in the caller's thread, inside the transaction of the caller's connection.

        Never commits or rolls back. Only for brokers that are ``transactional``.
        """

    async def seal(self, joins: Sequence[str]) -> int:
        """Seal held joins: they complete when their parts have ended. Returns how many changed."""

    async def advance(self, limit: int = MAX_RELEASED) -> int:
        """Queue or cancel jobs of completed joins; return how many, at most ``limit``.

        Zero means that nothing is left to do, or that another process does it.
        """

    async def results(self, join: str, after: int = -1, limit: int = 1_000) -> list[PartResult]:
        """Return the parts after a position, by position. Unknown joins have none."""

    async def members(
        self,
        group: str,
        after: tuple[str, int] = ("", -1),
        limit: int = 1_000,
        failed: bool = False,
    ) -> list[Member]:
        """Return the parts of all joins of a group after a position, at most ``limit``.

        ``after`` is the id of a join and a position in it. The parts are in the order of the ids of
        joins, by their bytes, and of the positions. With ``failed``, only parts are
        returned that have ended without success. Fewer than ``limit`` mean that there
        are no more. Unknown groups have none.
        """

    async def resolve(self, job: str, outcome: Resolution) -> bool:
        """End a job that does not run with this outcome, without a lease.

        Returns False if it runs, has ended or is unknown; then nothing has changed.
        """

    async def reopen(self, jobs: Sequence[str], changes: Changes = UNCHANGED) -> list[str]:
        """Run ended jobs again, together with everything that waits for them, in one step.

        Each of these jobs is queued again, with ``changes``, or blocked if the join that it waits
        for is not complete. It counts as not ended in its joins. Jobs that wait for these joins are
        blocked again unless they run or have succeeded; this continues with their joins. Succeeded
        jobs are reopened only if they are named. Returns the ids of all jobs that are live again
        because of this call.
        """

    async def drop(self, group: str) -> bool:
        """Remove the joins of a group whose jobs have all ended. Its records may then be pruned.

        Returns False if a job of the group is live; then nothing has changed.
        """

    async def sweep(self, unsealed_after: float = UNSEALED_SECONDS, limit: int = 100) -> list[str]:
        """Abandon joins that were held for too long, by the store's clock; return their ids.

        The jobs that wait for them are cancelled with the reason ``NEVER_SEALED``.
        """

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""
