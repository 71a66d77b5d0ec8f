"""The coordination store on Redis: entries in one sorted set, so that a prefix is read in pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from umbel.backends.coordination import (
    MAX_ENTRIES,
    Entry,
    Page,
    Put,
    check_commit,
    check_key,
    check_prefix,
    check_seconds,
    check_times,
    section_of,
)
from umbel.backends.redis.database import Database
from umbel.backends.redis.job_rows import job_row
from umbel.backends.redis.scripts import pack, pack_bytes, root_of, scripts
from umbel.backends.redis.values import optional_float, text
from umbel.clock import Clock
from umbel.messages import Envelope

LUA = scripts("coordination.lua")

_MIN_WAIT_SECONDS = 0.001
_LAST_BYTE = b"\xff"
"""It is in no key, because keys are UTF-8; so a prefix with it comes after all of its keys."""


class RedisCoordination:
    """See ``umbel.backends.coordination.Coordination`` for what each method guarantees."""

    def __init__(
        self, database: Database, *, namespace: str, clock: Clock, safety_poll: float = 5.0
    ) -> None:
        self._database = database
        self._root = root_of(namespace)
        self._clock = clock
        self._safety_poll = safety_poll

    async def read(self, prefix: str, after: str = "", limit: int = MAX_ENTRIES) -> Page:
        section = check_prefix(prefix)
        first, last = _lex_range(prefix, after)
        wanted = max(1, min(limit, MAX_ENTRIES))
        answer: list[Any] = []
        while not answer:  # it removes lapsed entries first, a portion per call
            answer = await self._run("read", section, pack_bytes(first), pack_bytes(last), wanted)
        revision, now, more, *rows = answer
        return Page(tuple(map(_entry, rows)), revision, optional_float(now) or 0.0, bool(more))

    async def commit(
        self,
        checks: Mapping[str, int],
        puts: Sequence[Put] = (),
        deletes: Sequence[str] = (),
        publish: Sequence[Envelope] = (),
    ) -> int | None:
        check_commit(puts, deletes)
        check_times(publish)
        revision: int | None = await self._run(
            "commit",
            [part for key, number in checks.items() for part in (check_key(key), number)],
            [part for put in puts for part in _put_parts(put)],
            [*deletes],
            [job_row(one) for one in publish],
        )
        return revision

    async def renew(self, held: Mapping[str, int], seconds: float) -> list[str]:
        check_seconds(seconds)
        keys = [*map(check_key, held)]
        parts = [part for pair in held.items() for part in pair]
        return [keys[index] for index in await self._run("renew", float(seconds), *parts)]

    async def changed(self, since: Mapping[str, int], wait: float) -> dict[str, int]:
        until = self._clock.monotonic() + wait
        sections = [*dict.fromkeys(map(check_prefix, since))]
        listener = self._database.listener(self._root)
        topics = [f"e:{self._root}:{section}" for section in sections]
        with listener.notifier.listen(topics) as wake_up:
            while True:
                wake_up.clear()
                lapse, *revisions = await self._run("watch", *sections)
                present = dict(zip(sections, revisions, strict=True))
                found = {prefix: present[section_of(prefix)] for prefix in since}
                changed = {one: number for one, number in found.items() if number != since[one]}
                left = until - self._clock.monotonic()
                if changed or left <= 0:
                    return changed
                poll = self._safety_poll if listener.is_subscribed(self._root) else 1.0
                until_lapse = optional_float(lapse)
                next_check = poll if until_lapse is None else min(poll, until_lapse)
                await wake_up.wait(min(left, max(next_check, _MIN_WAIT_SECONDS)))

    async def sweep(self, limit: int) -> int:
        removed = 0
        while removed < limit and (some := await self._run("sweep", limit - removed)):
            removed += some
        return removed

    async def close(self) -> None:
        await self._database.close()

    async def _run(self, name: str, *values: Any) -> Any:
        return await self._database.run(LUA[name], self._root, pack(*values))


def _lex_range(prefix: str, after: str) -> tuple[bytes, bytes]:
    """Return the range of the keys with this prefix that come after a key."""
    begin, previous = prefix.encode(errors="replace"), after.encode(errors="replace")
    first = b"(" + previous if previous >= begin else b"[" + begin
    return first, b"(" + begin + _LAST_BYTE


def _put_parts(put: Put) -> tuple[Any, ...]:
    # A nil would end the list in Lua, so an entry without a lease has False.
    lease = False if put.seconds is None else float(put.seconds)
    return put.key, pack_bytes(put.value), lease


def _entry(row: Sequence[Any]) -> Entry:
    key, value, revision, left = row
    return Entry(text(key), value, revision, optional_float(left))
