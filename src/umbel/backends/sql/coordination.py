"""Coordination: small versioned entries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from umbel.backends.broker import Published
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
from umbel.backends.sql.role import SqlRole
from umbel.backends.sql.statements import Steps
from umbel.messages import Envelope

_SWEEP_BATCH = 100
_RETRY_SECONDS = 0.5


class SqlCoordination(SqlRole, ABC):
    """See ``umbel.backends.coordination.Coordination`` for what each method promises."""

    files: ClassVar[tuple[str, ...]] = ("coordination.sql",)

    async def read(self, prefix: str, after: str = "", limit: int = MAX_ENTRIES) -> Page:
        limit = max(1, min(limit, MAX_ENTRIES))
        values = {
            "section": check_prefix(prefix),
            "prefix": prefix,
            "end": end_of(prefix),
            "after": after,
            "limit": limit + 1,
        }
        rows = await self._rows("read_entries", **values)
        while rows[0][6] and await self.sweep(
            _SWEEP_BATCH
        ):  # so the revision says that they lapsed
            rows = await self._rows("read_entries", **values)
        found = [Entry(row[0], bytes(row[1]), *row[2:4]) for row in rows if row[0] is not None]
        return Page(tuple(found[:limit]), rows[0][4], rows[0][5], more=len(found) > limit)

    async def commit(
        self,
        checks: Mapping[str, int],
        puts: Sequence[Put] = (),
        deletes: Sequence[str] = (),
        publish: Sequence[Envelope] = (),
    ) -> int | None:
        check_commit(puts, deletes)
        check_times(publish)
        for key in checks:
            check_key(key)

        def steps() -> Steps[int | None]:
            ((last,),) = yield self._sql["lock_revision"], self._values()
            if not (yield from self._check_steps(checks)):
                return None
            for put in puts:
                yield self._sql["put_entry"], self._put_values(put, last + 1)
            if deletes:
                keys = self._database.texts(deletes)
                yield self._sql["delete_entries"], self._values(keys=keys)
            keys_changed = [*(put.key for put in puts), *deletes]
            yield from self._change_steps(map(section_of, keys_changed), last + 1)
            if publish:
                yield from self._publish_steps(publish)
            return int(last) + 1

        return await self._database.transaction(steps)

    async def renew(self, held: Mapping[str, int], seconds: float) -> list[str]:
        check_seconds(seconds)
        for key in held:
            check_key(key)
        if not held:
            return []
        rows = await self._rows(
            "renew_entries",
            keys=self._database.texts([*held]),
            revisions=self._database.numbers([*held.values()]),
            seconds=float(seconds),
        )
        renewed = {row[0] for row in rows}
        return [key for key in held if key not in renewed]

    async def changed(self, since: Mapping[str, int], wait: float) -> dict[str, int]:
        sections = {prefix: check_prefix(prefix) for prefix in since}
        names = self._database.texts([*sections.values()])
        until = self._clock.monotonic() + wait
        await self._database.open()
        with self._database.wake_ups(f"e:{self._namespace}") as wake_ups:
            while True:
                wake_ups.clear()
                rows = await self._rows("section_revisions", sections=names)
                if rows[0][2] is not None and rows[0][2] <= 0 and await self._try_sweep():
                    continue
                next_lapse = rows[0][2]
                found = {name: revision for name, revision, _ in rows}
                now = {prefix: found.get(section, 0) for prefix, section in sections.items()}
                changes = {prefix: one for prefix, one in now.items() if one != since[prefix]}
                left = until - self._clock.monotonic()
                if changes or left <= 0:
                    return changes
                # A lapsed entry that is still there is locked by another transaction.
                lapse = left if next_lapse is None else next_lapse
                lapse = lapse if lapse > 0 else _RETRY_SECONDS
                await wake_ups.wait(min(left, self._database.max_wait, lapse))

    async def sweep(self, limit: int) -> int:
        if not await self._rows("has_lapsed"):  # most often there is nothing to write
            return 0
        return await self._database.transaction(lambda: self._sweep_steps("lock_revision", limit))

    async def _try_sweep(self) -> int:
        """Sweep without waiting for other commits; return how many entries were deleted."""
        lock = "try_lock_revision" if "try_lock_revision" in self._sql else "lock_revision"
        return await self._database.transaction(lambda: self._sweep_steps(lock, _SWEEP_BATCH))

    def _sweep_steps(self, lock: str, limit: int) -> Steps[int]:
        locked = yield self._sql[lock], self._values()
        if not locked:
            return 0
        rows = yield self._sql["delete_lapsed"], self._values(limit=limit)
        if rows:
            sections = (section_of(row[0]) for row in rows)
            yield from self._change_steps(sections, locked[0][0] + 1)
        return len(rows)

    def _check_steps(self, checks: Mapping[str, int]) -> Steps[bool]:
        """Return whether every key has the revision that it must have."""
        if not checks:
            return True
        keys = self._database.texts([*checks])
        rows = yield self._sql["entry_revisions"], self._values(keys=keys)
        found: dict[str, int] = dict(rows)
        return all(found.get(key, 0) == revision for key, revision in checks.items())

    def _change_steps(self, sections: Iterable[str], revision: int) -> Steps[None]:
        names = self._database.texts(["", *{*sections}])
        yield self._sql["change_sections"], self._values(sections=names, revision=revision)

    def _put_values(self, put: Put, revision: int) -> dict[str, object]:
        seconds = None if put.seconds is None else float(put.seconds)
        return self._values(key=put.key, value=put.value, revision=revision, seconds=seconds)

    @abstractmethod
    def _publish_steps(self, envelopes: Sequence[Envelope]) -> Steps[list[Published]]:
        """Publish in the open transaction. A taken unique key makes a cancelled record."""


def end_of(prefix: str) -> str:
    """Return the first text after all texts that begin with the prefix, in the order of bytes."""
    last = ord(prefix[-1])
    if last == 0xD7FF:  # the code points that follow are no characters
        return prefix[:-1] + "\ue000"
    if last == 0x10FFFF:
        return end_of(prefix[:-1])
    return prefix[:-1] + chr(last + 1)
