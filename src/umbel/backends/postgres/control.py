"""Pauses and cancellations on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from umbel.backends.control import NO_WORKER, ControlState, Pause, Scope
from umbel.backends.postgres.arrays import texts
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.ids import by_canonical
from umbel.backends.postgres.statements import Row, Steps, atomically
from umbel.clock import Clock
from umbel.messages import State

_ROUNDS = 2


class PostgresControl:
    """See ``stores.control.Control`` for what each method promises."""

    def __init__(
        self, database: Database, *, namespace: str, clock: Clock, safety_poll: float = 5.0
    ) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock
        self._safety_poll = safety_poll
        self._sql = database.home.sql | database.home.queries("store.sql")

    async def state(self) -> ControlState:
        rows = await self._rows("state")
        pauses = [
            Pause(scope=scope, name=name, since=since, reason=reason, holder=holder, age=age)
            for _, scope, name, since, reason, holder, age in rows
            if scope is not None
        ]
        return ControlState(rows[0][0], tuple(pauses))

    async def pause(self, scope: Scope, name: str, reason: str) -> int:
        return await self._change(("pause", {"scope": scope, "name": name, "reason": reason}))

    async def resume(self, scope: Scope, name: str) -> int:
        return await self._change(("resume", {"scope": scope, "name": name}))

    async def change_missing(self, missing: Sequence[str], found: Sequence[str]) -> None:
        await self._change(
            ("end_missing", {"name": texts([*found])}),
            ("begin_missing", {"name": texts([*missing]), "reason": NO_WORKER}),
        )

    async def cancel(self, jobs: Sequence[str], reason: str) -> dict[str, State]:
        names = by_canonical(jobs)
        found = await self._database.perform(lambda: atomically(self._cancelling(names, reason)))
        return {name: found[key] for key, name in names.items() if key in found}

    async def bury(self, jobs: Sequence[str], reason: str) -> list[str]:
        names = by_canonical(jobs)
        reasons = texts([reason] * len(names))
        values = {"id": texts([*names]), "reason": reasons, "final": State.BURIED.value}
        return [names[row[0]] for row in await self._rows("cancel_idle", **values)]

    async def cancellations(self, jobs: Sequence[str]) -> dict[str, str]:
        names = by_canonical(jobs)
        rows = await self._rows("cancellations", id=texts([*names]))
        return {names[key]: reason for key, reason in rows}

    async def changed(self, since: int, wait: float) -> bool:
        until = self._clock.monotonic() + wait
        listener = self._database.listener()
        with listener.bell.listen([f"c:{self._namespace}"]) as ear:
            while True:
                ear.clear()
                if await self._epoch() != since:
                    return True
                left = until - self._clock.monotonic()
                if left <= 0:
                    return False
                await ear.wait(min(left, self._safety_poll if listener.hearing else 1.0))

    async def close(self) -> None:
        await self._database.close()

    async def _change(self, *queries: tuple[str, dict[str, Any]]) -> int:
        def steps() -> Steps[int]:
            for query, values in queries:
                yield self._sql[query], {"namespace": self._namespace, **values}
            rows = yield self._sql["next_epoch"], {"namespace": self._namespace}
            epoch: int = rows[0][0]
            return epoch

        return await self._database.perform(lambda: atomically(steps()))

    def _cancelling(self, jobs: Iterable[str], reason: str) -> Steps[dict[str, State]]:
        found: dict[str, State] = {}
        left = [*jobs]
        for _ in range(_ROUNDS):  # a job may start, or go back to its queue, between two looks
            found |= yield from self._cancelling_once(left, reason)
            left = [job for job in left if job not in found]
            if not left:
                break
        if State.RUNNING in found.values():
            yield self._sql["next_epoch"], {"namespace": self._namespace}
        return found

    def _cancelling_once(self, jobs: Sequence[str], reason: str) -> Steps[dict[str, State]]:
        values = {
            "namespace": self._namespace,
            "id": texts(jobs),
            "reason": texts([reason] * len(jobs)),
            "why": reason.replace("\x00", "\ufffd"),
            "final": State.CANCELLED.value,
        }
        cancelled = yield self._sql["cancel_idle"], values
        running = yield self._sql["ask_to_stop"], values
        final = yield self._sql["final_states"], values
        return (
            {job: State(state) for job, state in final}
            | {row[0]: State.RUNNING for row in running}
            | {row[0]: State.CANCELLED for row in cancelled}
        )

    async def _epoch(self) -> int:
        rows = await self._rows("epoch")
        return rows[0][0] if rows else 0

    async def _rows(self, query: str, **values: Any) -> list[Row]:
        return await self._database.rows(self._sql[query], {"namespace": self._namespace, **values})
