"""Job records on Redis: a job is one hash, live or finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any

from umbel.backends.records import (
    FINISHED_JOBS,
    UNCHANGED,
    Changes,
    Cursor,
    JobFilter,
    JobPage,
    ProgressNote,
    Run,
    RunTimes,
    Waiting,
    page_of,
    search_all,
)
from umbel.backends.redis.database import Database
from umbel.backends.redis.record_rows import FIELDS, change_fields, is_final, read_record
from umbel.backends.redis.run_times import RunTimeTally
from umbel.backends.redis.scripts import pack, root_of, scripts
from umbel.backends.redis.values import optional_float, text
from umbel.backends.rows import PRUNE_BATCH, stored_states
from umbel.clock import Clock
from umbel.errors import ResultTimeout, UnknownJob
from umbel.messages import LIVE, TERMINAL, Record, State

LUA = scripts("records.lua", "job_gates.lua")

_STILL_LIVE = 0
_MAX_PORTIONS = 100
"""Maximum number of portions, of 1,000 live jobs each, that are counted by task."""
_ALL = 2**53
_BURIED = frozenset({State.BURIED})


class RedisRecords:
    """See ``umbel.backends.records.Records`` for what each method guarantees."""

    def __init__(
        self, database: Database, *, namespace: str, clock: Clock, safety_poll: float = 1.0
    ) -> None:
        self._database = database
        self._namespace = namespace
        self._root = root_of(namespace)
        self._clock = clock
        self._safety_poll = safety_poll

    async def find(self, job: str) -> Record:
        key = f"{self._root}:job:{job}".encode(errors="replace")
        *fields, gates = await self._database.execute("HMGET", key, *FIELDS, "gates")
        parts: Sequence[Any] = (fields,)
        if gates and not is_final(fields):
            # Read again, so that gate and slots belong to the same state as the fields.
            parts = await self._run("find", pack(job, FIELDS)) or parts
        return self._known(job, *parts)

    async def tasks(self, jobs: Sequence[str]) -> dict[str, str]:
        found = await self._run("tasks", pack(*jobs))
        return {text(job): text(task) for job, task in zip(found[::2], found[1::2], strict=True)}

    async def scan(self, wanted: JobFilter, *, after: str = "", rows: int) -> JobPage:
        start = wanted.start(after)
        following = FINISHED_JOBS if start.is_live else None
        if not start.is_live and wanted.until is not None and wanted.until < start.position:
            start = Cursor(False, wanted.until)
        found: list[tuple[Record, Cursor]] = []
        edges: list[Cursor] = []
        read = 0
        for index in ("live",) if start.is_live else ("done", "buried"):
            if not wanted.states or _states_in(index) & set(wanted.states):
                jobs, edge, some = await self._list(index, wanted, start, rows)
                found, read = found + jobs, read + some
                edges += [edge] if edge is not None else []
        found.sort(key=lambda one: _place(one[1]), reverse=True)
        if edges:  # behind the first edge, the other index may have jobs that were not read
            following = max(edges, key=_place)
            found = [one for one in found if _place(one[1]) >= _place(following)]
        return page_of(found[: wanted.limit], wanted.limit, following, read)

    async def search(self, wanted: JobFilter) -> list[Record]:
        return await search_all(self.scan, wanted)

    async def wait_finished(self, job: str, timeout: float | None) -> Record:
        until = None if timeout is None else self._clock.monotonic() + timeout
        listener = self._database.listener(self._root)
        with listener.notifier.listen([f"d:{self._root}:{job}"]) as wake_up:
            while True:
                wake_up.clear()
                fields = await self._run("find_finished", pack(job, FIELDS))
                if fields != _STILL_LIVE:
                    return self._known(job, fields)
                is_subscribed = listener.is_subscribed(self._root)
                poll = self._safety_poll if is_subscribed else self._database.address.poll
                left = poll if until is None else until - self._clock.monotonic()
                if left <= 0:
                    raise ResultTimeout(f"job {job} has not finished within {timeout} s")
                await wake_up.wait(min(left, poll))

    def find_finished_blocking(self, job: str, timeout: float) -> Record | None:
        if self._database.blocking.is_busy:
            return None
        packed = [pack(job, FIELDS)]
        fields = self._database.blocking.run(LUA["find_finished"], self._root, packed, timeout)
        return read_record(job, self._namespace, fields) if fields else None

    async def record_progress(self, notes: Sequence[ProgressNote]) -> None:
        # A nil would end the list in Lua, so a missing total is False.
        values = [
            part
            for note in notes
            for part in (note.job, note.fence, note.done, False if note.of is None else note.of)
        ]
        await self._run("record_progress", pack(*values))

    async def replay(self, jobs: Sequence[str], changes: Changes = UNCHANGED) -> list[str]:
        arguments = pack([*jobs], change_fields(changes), changes.from_scratch)
        replayed = await self._run("replay", arguments)
        return [text(job) for job in replayed]

    async def prune(self, *, older_than: float, keep: int, limit: int) -> int:
        pruned = await self._prune("keep_until", 0.0, _ALL, limit)
        return pruned + await self._prune("done", float(older_than), keep, limit - pruned)

    async def prunable_groups(
        self, *, older_than: float, keep: int, after: str = "", limit: int
    ) -> list[str]:
        found: list[str] = []
        while len(found) < limit:  # in portions: many groups may be live
            arguments = pack(float(older_than), keep, after, limit - len(found))
            last, *groups = await self._run("prunable_groups", arguments)
            found += map(text, groups)
            if last is None:
                break
            after = text(last)
        return found

    async def _prune(self, index: str, age: float, keep: int, limit: int) -> int:
        pruned = skipped = 0
        while pruned < limit:
            batch = min(PRUNE_BATCH, limit - pruned)
            arguments = pack(index, age, keep, batch, skipped)
            some, kept = await self._run("prune", arguments)
            pruned, skipped = pruned + some, skipped + kept
            if some + kept < batch:
                break
        return pruned

    async def remove(self, jobs: Sequence[str]) -> int:
        removed: int = await self._run("remove", pack(*jobs))
        return removed

    async def runs(self, owners: Sequence[str]) -> list[Run]:
        found: list[Run] = []
        for owner in owners:  # one at a time: each may hold thousands
            rows = await self._run("runs", pack(owner))
            quads = zip(rows[::4], rows[1::4], rows[2::4], rows[3::4], strict=True)
            found += [
                Run(
                    job=text(job),
                    task=text(task),
                    queue=text(queue),
                    owner=owner,
                    age=max(0.0, optional_float(age) or 0.0),
                )
                for job, task, queue, age in quads
            ]
        return sorted(found, key=lambda run: (-run.age, run.job))

    async def count_waiting(self) -> list[Waiting]:
        counts: Counter[tuple[str, str]] = Counter()
        cursor = 0
        for _ in range(_MAX_PORTIONS):
            following, *rows = await self._run("count_waiting", pack(cursor))
            counts.update({(text(queue), text(task)): n for queue, task, n in rows})
            if not following:
                break
            cursor = following
        return [Waiting(queue, task, jobs) for (queue, task), jobs in counts.items()]

    async def run_times(
        self, *, since: float, longer: float, but: Sequence[str], worst: int
    ) -> list[RunTimes]:
        tallies: dict[str, RunTimeTally] = {}
        seconds, millionths = await self._database.execute("TIME")
        begin = int(seconds) + int(millionths) / 1e6 - since
        for index in ("done", "buried"):
            cursor: int | None = 0
            while cursor is not None:  # in portions: the history may be long
                values = (index, cursor, begin, float(longer), [*but], worst)
                following, *rows = await self._run("run_times", pack(*values))
                for task, tally in zip(rows[::2], rows[1::2], strict=True):
                    tallies.setdefault(text(task), RunTimeTally()).add(*tally)
                cursor = following or None
        found = [tally.summarize(task, worst) for task, tally in tallies.items() if tally.long]
        return sorted(found, key=lambda times: (-times.worst, times.task))

    async def close(self) -> None:
        await self._database.close()

    async def _list(
        self, index: str, wanted: JobFilter, start: Cursor, rows: int
    ) -> tuple[list[tuple[Record, Cursor]], Cursor | None, int]:
        """Return the newest jobs of an index that match, where to continue, and how many were read.

        All live jobs are read if needed, but only so many finished ones.
        """
        names = (wanted.task, wanted.queue, wanted.worker)
        times = (wanted.published_before, wanted.since, wanted.until)
        states = stored_states(wanted.states) if wanted.states else False
        filters = [
            states,
            *(False if one is None else one for one in (*names, *times, wanted.id_part)),
        ]
        found: dict[str, tuple[Record, Cursor]] = {}
        cursor, read = start, 0
        while True:  # in portions: an index may be long
            place = (cursor.position, cursor.job) if cursor.position < inf else (False, "")
            arguments = pack(index, *place, *filters, wanted.limit - len(found), FIELDS)
            score, last, some, *rest = await self._run("list", arguments)
            for job, at, *parts in rest:
                record = read_record(text(job), self._namespace, *parts)
                if record is not None:
                    here = Cursor(start.is_live, optional_float(at) or 0.0, record.id)
                    found[record.id] = (record, here)
            read += some
            if not score or len(found) >= wanted.limit:
                return [*found.values()], None, read
            cursor = Cursor(start.is_live, optional_float(score) or 0.0, text(last))
            if read >= rows and not start.is_live:
                return [*found.values()], cursor, read

    def _known(self, job: str, fields: Sequence[bytes | None] | None, *gates: Any) -> Record:
        """Return a job's record, as ``read_record`` does. Raises UnknownJob."""
        found = fields and read_record(job, self._namespace, fields, *gates)
        if not found:
            raise UnknownJob(f"no job {job}: never published here, or pruned")
        return found

    async def _run(self, name: str, packed: bytes) -> Any:
        return await self._database.run(LUA[name], self._root, packed)


def _place(cursor: Cursor) -> tuple[float, str]:
    return cursor.position, cursor.job


def _states_in(index: str) -> frozenset[State]:
    if index == "live":
        return LIVE
    return _BURIED if index == "buried" else TERMINAL - _BURIED
