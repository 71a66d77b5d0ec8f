"""Joins: jobs that wait for other jobs. Counting happens where jobs end, in triggers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, ClassVar

from msgspec.structs import replace

from umbel.backends.broker import Published
from umbel.backends.joins import (
    MAX_RELEASED,
    NEVER_SEALED,
    UNSEALED_SECONDS,
    Resolution,
    check_growth,
    check_namespace,
    check_publication,
)
from umbel.backends.records import UNCHANGED, Changes
from umbel.backends.rows import change_row, member
from umbel.backends.sql.ending import end_idle_steps
from umbel.backends.sql.role import SqlRole, unknown_job
from umbel.backends.sql.statements import Steps
from umbel.errors import ConfigurationError, UnknownJob
from umbel.messages import (
    TERMINAL,
    Body,
    Envelope,
    Finish,
    Growth,
    Lease,
    Member,
    PartResult,
    Publication,
    State,
    disposition,
)
from umbel.messages.columns import read_failure
from umbel.messages.joins import cancel_reason

_FAILED = TERMINAL - {State.SUCCEEDED}
_MAX_REOPENED = 20_000
_MAX_ROUNDS = 3
_ROUNDS_IN_TRANSACTION = 50


class SqlJoins(SqlRole, ABC):
    """See ``umbel.backends.joins.Joins`` for what each method promises."""

    files: ClassVar[tuple[str, ...]] = ("joins.sql", "store.sql")

    async def add(self, publication: Publication, within: Any = None) -> list[Published]:
        self.check(publication)
        if within is not None:
            return await self._add_within(publication, within)
        return await self._database.transaction(lambda: self.add_steps(publication))

    def check(self, publication: Publication) -> None:
        """Raise ConfigurationError if the publication cannot be added here."""
        check_publication(publication)
        check_namespace(publication, self._namespace)

    @abstractmethod
    def add_within(self, publication: Publication, connection: Any) -> list[Published]:
        """Add in the caller's transaction and thread."""

    async def seal(self, joins: Sequence[str]) -> int:
        def steps() -> Steps[int]:
            rows = yield self._sql["seal"], self._values(joins=self._database.texts(joins))
            yield from self._release_steps([row[0] for row in rows])
            return len(rows)

        return await self._database.transaction(steps)

    async def advance(self, limit: int = MAX_RELEASED) -> int:
        def steps() -> Steps[int]:
            many = 0
            # What ends here may complete further joins. Many rounds in one transaction would read
            # the versions of rows that the rounds before have left.
            for _ in range(_ROUNDS_IN_TRANSACTION):
                moved = yield from self._advance_once_steps(limit - many)
                many += moved
                if not moved or many >= limit:
                    break
            return many

        if not await self._rows("has_due_joins"):  # most often there is nothing to write
            return 0
        return await self._database.transaction(steps)

    async def results(self, join: str, after: int = -1, limit: int = 1_000) -> list[PartResult]:
        rows = await self._rows("results", join=join, after=after, limit=limit)
        return [
            PartResult(
                position=position,
                job=job,
                state=State.QUEUED if state == "sent" else State(state),
                result=None if result is None else Body(result_type or "", bytes(result)),
                failure=read_failure(failure),
                reason=reason,
            )
            for position, job, state, result_type, result, failure, reason in rows
        ]

    async def members(
        self,
        group: str,
        after: tuple[str, int] = ("", -1),
        limit: int = 1_000,
        failed: bool = False,
    ) -> list[Member]:
        found: list[Member] = []
        while len(found) < limit:  # a part that was counted as failed may have been replayed
            join, position = after
            size = limit - len(found)
            values = {"join": join, "after": position, "limit": size, "failed": failed}
            some = [member(row) for row in await self._rows("members", group=group, **values)]
            found += [one for one in some if not failed or one.state in _FAILED]
            if len(some) < size:
                break
            after = some[-1].join, some[-1].position
        return found

    async def resolve(self, job: str, outcome: Resolution) -> bool:
        end = disposition(outcome)
        assert isinstance(end, Finish)
        try:
            key = self._database.stored_id(job)
        except UnknownJob:
            return False

        def steps() -> Steps[bool]:
            ended = yield from end_idle_steps(self, [key], end.reason, end.state)
            if ended and (end.result is not None or end.failure is not None):
                values = self._values(
                    id=key,
                    result_type=end.result.content_type if end.result else None,
                    result=end.result.data if end.result else None,
                    failure=self._database.json(end.failure) if end.failure else None,
                )
                yield self._sql["set_result"], values
            return bool(ended)

        return await self._database.transaction(steps)

    async def reopen(self, jobs: Sequence[str], changes: Changes = UNCHANGED) -> list[str]:
        names = self._stored_ids(jobs)
        return await self._database.transaction(lambda: self._reopen_steps([*names], changes))

    async def drop(self, group: str) -> bool:
        def steps() -> Steps[bool]:
            if "lock_group" in self._sql:  # SQLite has one write transaction at a time
                yield self._sql["lock_group"], self._values(group=group)
            ((is_live,),) = yield self._sql["is_group_live"], self._values(group=group)
            if is_live:
                return False
            yield self._sql["drop_group"], self._values(group=group)
            return True

        return await self._database.transaction(steps)

    async def sweep(self, unsealed_after: float = UNSEALED_SECONDS, limit: int = 100) -> list[str]:
        values = self._values(age=float(unsealed_after), limit=limit)

        def steps() -> Steps[list[str]]:
            joins = [row[0] for row in (yield self._sql["unsealed_joins"], values)]
            for join in joins:
                yield self._sql["abandon_join"], self._values(join=join)
                yield from self._cancel_steps(join, NEVER_SEALED, MAX_RELEASED)
                yield self._sql["finish_join"], self._values(join=join)
            return joins

        if not await self._database.rows(self._sql["unsealed_joins"], values):
            return []  # most often there is nothing to write
        return await self._database.transaction(steps)

    def add_steps(self, publication: Publication) -> Steps[list[Published]]:
        """Add a publication in the open transaction. It was checked by ``check_publication``."""
        envelopes = publication.envelopes
        if envelopes and (yield from self._is_known_steps(envelopes[0])):
            return [Published(envelope.id, existing=True) for envelope in envelopes]
        return (yield from self._add_new_steps(publication))

    def grow_steps(self, lease: Lease, growth: Growth) -> Steps[str | None]:
        """Let a publication replace the job under this lease.

        Nothing happens if the lease is lost, or if the cancellation of the job was requested: then
        the reason of the request is returned.
        """
        check_growth(growth)
        check_namespace(growth.publication, self._namespace)
        values = self._values(id=lease.job, owner=lease.owner, fence=lease.fence)
        locked = yield self._sql["lock_lease"], values
        if locked and locked[0][0] is not None:
            return str(locked[0][0])
        if locked:
            place = self._database.stored_id(growth.replacement)
            rows = yield self._sql["move_edges"], values | {"place": place}
            moved = [growth.replacement] if rows else []
            yield from self._add_new_steps(growth.publication, moved)
            ended = self._values(jobs=self._database.texts([place]))
            joins = [row[0] for row in (yield self._sql["count_ended"], ended)]
            if joins:  # the job in its place had been published before
                yield self._sql["recount"], self._values(joins=self._database.texts(joins))
                yield from self._release_steps(joins)
        return None

    def _add_new_steps(
        self, publication: Publication, more_parts: Sequence[str] = ()
    ) -> Steps[list[Published]]:
        own = {envelope.id for envelope in publication.envelopes}
        parts = {*(edge.job for edge in publication.edges), *more_parts}
        yield from self._mark_steps(parts - own)
        yield from self._join_steps(publication)
        published = yield from self._insert_steps(publication, parts)
        known = {one.id for one in published if one.existing}
        yield from self._mark_steps(parts & known)
        yield from self._edge_steps(publication)
        yield from self._release_steps([join.id for join in publication.joins])
        return published

    def _is_known_steps(self, envelope: Envelope) -> Steps[bool]:
        job = self._database.stored_id(envelope.id)
        if "lock_publication" in self._sql:  # SQLite has one write transaction at a time
            yield self._sql["lock_publication"], self._values(id=job)
        values = self._values(jobs=self._database.texts([job]))
        return not (yield self._sql["unknown_parts"], values)

    def _mark_steps(self, jobs: Iterable[str]) -> Steps[None]:
        """Make sure that jobs of other publications exist, and that their ends are counted."""
        wanted = {self._database.stored_id(job) for job in jobs}
        if not wanted:
            return
        if "mark_parts" not in self._sql:  # on SQLite, the trigger finds the parts by itself
            values = self._values(jobs=self._database.texts([*wanted]))
            for (job,) in (yield self._sql["unknown_parts"], values):
                raise unknown_job(job)
            return
        for _ in range(_MAX_ROUNDS):  # a job may end, or be replayed, between two statements
            values = self._values(jobs=self._database.texts(sorted(wanted)))
            wanted -= {row[0] for row in (yield self._sql["mark_parts"], values)}
            wanted -= {row[0] for row in (yield self._sql["lock_records"], values)}
            if not wanted:
                return
        raise unknown_job(min(wanted))

    def _join_steps(self, publication: Publication) -> Steps[None]:
        """Add joins, and make sure that those exist to which parts or waiting jobs are added."""
        database, joins = self._database, publication.joins
        values = self._values(
            ids=database.texts([join.id for join in joins]),
            groups=database.texts([join.group for join in joins]),
            fires=database.texts([join.fire for join in joins]),
            held=database.numbers([join.held for join in joins]),
        )
        new: list[str] = []
        if joins:
            new = [row[0] for row in (yield self._sql["add_joins"], values)]
        used = {edge.join for edge in publication.edges}
        used |= {wait.join for wait in publication.waits}
        asked = self._values(joins=database.texts(sorted(used)), new=database.texts(new))
        found = {row[0] for row in (yield self._sql["open_joins"], asked)}
        for join in sorted(used - found):
            raise ConfigurationError(
                f"join {join!r}: it does not exist, or is complete; add it in the same publication,"
                " or hold it until it is sealed"
            )

    def _insert_steps(self, publication: Publication, parts: set[str]) -> Steps[list[Published]]:
        """Add the jobs in their order: blocked or not, each as a part or not."""
        blocked = {wait.job for wait in publication.waits}
        published: list[Published] = []

        def way(envelope: Envelope) -> tuple[bool, bool]:
            return envelope.id in blocked, envelope.id in parts

        for (is_blocked, is_part), group in groupby(publication.envelopes, way):
            some = [*group]
            if is_blocked:  # these seconds count from when the job is no longer blocked
                some = [replace(one, delay=None, expires_in=None) for one in some]
            published += yield from self._publish_steps(some, blocked=is_blocked, part=is_part)
        yield from self._wait_steps(publication)
        return published

    def _wait_steps(self, publication: Publication) -> Steps[None]:
        if not publication.waits:
            return
        database = self._database
        envelopes = {envelope.id: envelope for envelope in publication.envelopes}
        waiting = [envelopes[wait.job] for wait in publication.waits]
        values = self._values(
            joins=database.texts([wait.join for wait in publication.waits]),
            jobs=database.texts([database.stored_id(wait.job) for wait in publication.waits]),
            delays=database.numbers([one.delay for one in waiting]),
            expiries=database.numbers([one.expires_in for one in waiting]),
        )
        yield self._sql["add_waits"], values

    def _edge_steps(self, publication: Publication) -> Steps[None]:
        edges, database = publication.edges, self._database
        if not edges:
            return
        values = self._values(
            joins=database.texts([edge.join for edge in edges]),
            positions=database.numbers([edge.position for edge in edges]),
            jobs=database.texts([database.stored_id(edge.job) for edge in edges]),
        )
        if len((yield self._sql["add_edges"], values)) < len(edges):
            raise ConfigurationError("position: a join has a part at that position already")

    def _release_steps(self, joins: Sequence[str], limit: int = MAX_RELEASED) -> Steps[int]:
        """Queue jobs of these joins, as far as they are complete; return how many."""
        if not joins:
            return 0
        values = self._values(joins=self._database.texts(joins), limit=limit)
        rows = yield self._sql["release_joins"], values
        if "finish_released" in self._sql:  # PostgreSQL's function does it
            yield self._sql["finish_released"], values
            return len(rows)
        return int(rows[0][0])

    def _advance_once_steps(self, limit: int) -> Steps[int]:
        many = 0
        for join, fire, is_abandoned, fires in (yield self._sql["due_joins"], self._values()):
            if many >= limit:
                break
            if fires and not is_abandoned:
                many += yield from self._release_steps([join], limit - many)
            else:
                reason = NEVER_SEALED if is_abandoned else cancel_reason(fire)
                many += yield from self._cancel_steps(join, reason, limit - many)
            yield self._sql["finish_join"], self._values(join=join)
        return many

    def _cancel_steps(self, join: str, reason: str, limit: int) -> Steps[int]:
        """Cancel jobs that a join blocks; return how many."""
        rows = yield self._sql["blocked_jobs"], self._values(join=join, limit=limit)
        ended = yield from end_idle_steps(self, [row[0] for row in rows], reason, State.CANCELLED)
        return len(ended)

    def _reopen_steps(self, jobs: Sequence[str], changes: Changes) -> Steps[list[str]]:
        texts = self._database.texts
        lock = "lock_ended" if "lock_ended" in self._sql else "final_states"
        asked = self._values(id=texts(jobs), jobs=texts(jobs))
        named = [row[0] for row in (yield self._sql[lock], asked)]
        joins: set[str] = set()
        while True:  # until no join was added that is not locked
            ended, live = yield from self._dependent_steps(named)
            values = self._values(jobs=texts([*named, *ended, *live]))
            locked = {row[0] for row in (yield self._sql["lock_joins"], values)}
            if locked <= joins:
                break
            joins |= locked
        back = yield from self._replay_steps(named, changes)
        back += yield from self._replay_steps(ended, UNCHANGED)
        rows = yield self._sql["uncount"], self._values(jobs=texts([*back, *live]))
        yield self._sql["recount"], self._values(joins=texts([*joins, *(row[0] for row in rows)]))
        yield self._sql["block_again"], self._values(jobs=texts([*back, *live]))
        return back

    def _dependent_steps(self, jobs: Sequence[str]) -> Steps[tuple[list[str], list[str]]]:
        """Return the jobs that have to wait again for these: ended ones, and live ones."""
        ended: list[str] = []
        live: list[str] = []
        seen, level = {*jobs}, [*jobs]
        while level:
            values = self._values(jobs=self._database.texts(level))
            level = []
            for job, state in (yield self._sql["dependents"], values):
                if job not in seen and state not in (None, "running", "blocked", "succeeded"):
                    seen.add(job)
                    level.append(job)
                    (ended if state in TERMINAL else live).append(job)
            if len(seen) > _MAX_REOPENED:
                raise ConfigurationError(f"jobs: more than {_MAX_REOPENED:,} jobs wait for them")
        return ended, live

    def _replay_steps(self, jobs: Sequence[str], changes: Changes) -> Steps[list[str]]:
        """Queue these ended jobs again, also those that succeeded; return their ids."""
        row = self._values(**change_row(changes), is_success_included=True)
        if "remove_replayed" not in self._sql:
            rows = yield self._sql["replay"], row | {"id": self._database.texts(jobs)}
            return [job for job, *_ in rows]
        for job in jobs:  # SQLite needs several statements for each
            yield self._sql["replay"], row | {"id": job}
            yield self._sql["remove_replayed"], row | {"id": job}
            if changes.from_scratch:
                yield self._sql["forget_steps"], row | {"id": job}
        return [*jobs]

    @abstractmethod
    async def _add_within(self, publication: Publication, connection: Any) -> list[Published]:
        """Add in the transaction of a connection of async code."""

    @abstractmethod
    def _publish_steps(
        self, envelopes: Sequence[Envelope], *, blocked: bool, part: bool
    ) -> Steps[list[Published]]:
        """Publish in the open transaction. A taken unique key makes a cancelled record."""
