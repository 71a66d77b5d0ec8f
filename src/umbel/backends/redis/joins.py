"""Joins on Redis: jobs that wait for other jobs. Their ends are counted by counting.lua."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from umbel.backends.broker import Published
from umbel.backends.joins import (
    MAX_RELEASED,
    UNSEALED_SECONDS,
    Resolution,
    check_namespace,
)
from umbel.backends.records import UNCHANGED, Changes
from umbel.backends.redis.database import Database
from umbel.backends.redis.publications import publication_error, publication_row
from umbel.backends.redis.record_rows import change_fields, is_final
from umbel.backends.redis.scripts import pack, root_of, scripts
from umbel.backends.redis.settling import end_fields
from umbel.backends.redis.values import optional_float, optional_text, text
from umbel.backends.rows import SENT, member
from umbel.clock import Clock
from umbel.errors import ConfigurationError
from umbel.messages import Body, Finish, Member, PartResult, Publication, State, disposition
from umbel.messages.columns import read_failure

LUA = scripts("joins.lua", "publications.lua")

_PORTION = 1_000
_MAX_REOPENED = 20_000
_RESULT_FIELDS = ("result_type", "result", "failure", "reason")
_MEMBER_FIELDS = (
    *("task", "headers", "result_type", "failure", "reason", "cancel"),
    *("created", "claimed", "finished", "worker"),
)
_DROPPED, _UNFINISHED = 1, 2


class RedisJoins:
    """See ``umbel.backends.joins.Joins`` for what each method guarantees."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._root = root_of(namespace)
        self._namespace = namespace

    async def add(self, publication: Publication, within: Any = None) -> list[Published]:
        if within is not None:
            return self.add_within(publication, within)
        check_namespace(publication, self._namespace)
        answer = await self._run("add", publication_row(publication))
        if error := publication_error(answer):
            raise error
        existing = {*answer[1:]}
        return [
            Published(one.id, existing=index in existing)
            for index, one in enumerate(publication.envelopes, 1)
        ]

    def add_within(self, publication: Publication, connection: Any) -> list[Published]:
        """Raise ConfigurationError: Redis cannot take part in a caller's transaction."""
        raise ConfigurationError(
            f"connection={type(connection).__name__}: Redis cannot join a transaction; add it"
            " after the commit, or use PostgreSQL or SQLite as the broker"
        )

    async def seal(self, joins: Sequence[str]) -> int:
        sealed: int = await self._run("seal", *joins)
        return sealed

    async def advance(self, limit: int = MAX_RELEASED) -> int:
        many, more = 0, 1
        while more and not many:  # a call may only find joins that have nothing left to do
            many, more = await self._run("advance", limit)
        return many

    async def results(self, join: str, after: int = -1, limit: int = 1_000) -> list[PartResult]:
        found: list[PartResult] = []
        while len(found) < limit:  # in portions: a join may have many parts
            size = min(_PORTION, limit - len(found))
            rows = await self._run("results", join, after, size, _RESULT_FIELDS)
            found += map(_part_result, rows)
            if len(rows) < size:
                break
            after = found[-1].position
        return found

    async def members(
        self,
        group: str,
        after: tuple[str, int] = ("", -1),
        limit: int = 1_000,
        failed: bool = False,
    ) -> list[Member]:
        found: list[Member] = []
        while len(found) < limit:  # in portions: a group may have many parts that have not failed
            asked = (group, *after, limit - len(found), failed, _MEMBER_FIELDS)
            place, rows = await self._run("members", *asked)
            found += map(_member, rows)
            if not place:
                break
            after = text(place[0]), place[1]
        return found

    async def resolve(self, job: str, outcome: Resolution) -> bool:
        end = disposition(outcome)
        assert isinstance(end, Finish)
        return bool(await self._run("resolve", job, end.state.value, end_fields(end)))

    async def reopen(self, jobs: Sequence[str], changes: Changes = UNCHANGED) -> list[str]:
        arguments = (change_fields(changes), changes.from_scratch, _MAX_REOPENED)
        reopened = await self._run("reopen", [*jobs], *arguments)
        if reopened is None:
            raise ConfigurationError(f"jobs: more than {_MAX_REOPENED:,} jobs wait for them")
        return [text(job) for job in reopened]

    async def drop(self, group: str) -> bool:
        cursor = ("", 0)
        while True:  # in portions: a group may have many jobs
            answer, *where = await self._run("drop", group, *cursor)
            if answer != _UNFINISHED:
                break
            cursor = (text(where[0]), where[1])
        if answer == _DROPPED:
            await self._forget_dropped()
        return bool(answer == _DROPPED)

    async def sweep(self, unsealed_after: float = UNSEALED_SECONDS, limit: int = 100) -> list[str]:
        swept = [text(join) for join in await self._run("sweep", float(unsealed_after), limit)]
        await self._forget_dropped()  # if the process that dropped them did not finish
        return swept

    async def close(self) -> None:
        await self._database.close()

    async def _forget_dropped(self) -> None:
        while await self._run("forget_dropped"):
            pass

    async def _run(self, name: str, *values: Any) -> Any:
        return await self._database.run(LUA[name], self._root, pack(*values))


def _part_result(row: Sequence[Any]) -> PartResult:
    position, job, state, fields = row
    result_type, result, failure, reason = fields or (None,) * len(_RESULT_FIELDS)
    return PartResult(
        position=position,
        job=text(job),
        state=State.QUEUED if text(state) == SENT else State(text(state)),
        result=None if result is None else Body(text(result_type), result),
        failure=read_failure(optional_text(failure)),
        reason=text(reason),
    )


def _member(row: Sequence[Any]) -> Member:
    join, position, job, state, fields = row
    (task, headers, result_type, failure, reason, cancel) = fields[:6] or (None,) * 6
    (created, started, finished, worker) = fields[6:] or (None,) * 4
    return member(
        (
            text(join),
            position,
            text(job),
            text(state),
            text(task),
            text(headers, "{}"),
            optional_text(result_type),
            optional_text(failure),
            text(reason if is_final([state]) else cancel),
            optional_float(created),
            optional_float(started),
            optional_float(finished),
            optional_text(worker),
        )
    )
