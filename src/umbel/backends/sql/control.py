"""Pauses and cancellations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from umbel.backends.control import NO_WORKER, ControlState, Pause, Scope
from umbel.backends.sql.role import SqlRole
from umbel.backends.sql.statements import Steps
from umbel.messages import State

_MAX_ROUNDS = 2


class SqlControl(SqlRole):
    """See ``umbel.backends.control.Control`` for what each method promises."""

    files = ("store.sql",)

    async def state(self) -> ControlState:
        rows = await self._rows("state")
        pauses = [
            Pause(scope=scope, name=name, since=since, reason=reason, holder=holder, age=age)
            for _, scope, name, since, reason, holder, age in rows
            if scope is not None
        ]
        return ControlState(rows[0][0], tuple(pauses))

    async def pause(self, scope: Scope, name: str, reason: str) -> int:
        return await self._change("pause", scope=scope, name=name, reason=reason)

    async def resume(self, scope: Scope, name: str) -> int:
        return await self._change("resume", scope=scope, name=name)

    async def change_missing(self, missing: Sequence[str], found: Sequence[str]) -> None:
        texts = self._database.texts
        lists = {"missing": texts([*missing]), "found": texts([*found])}
        await self._change("end_missing", "begin_missing", **lists, reason=NO_WORKER)

    async def cancel(self, jobs: Sequence[str], reason: str) -> dict[str, State]:
        names = self._stored_ids(jobs)
        found = await self._database.transaction(lambda: self._cancel_steps(names, reason))
        return {name: found[key] for key, name in names.items() if key in found}

    async def bury(self, jobs: Sequence[str], reason: str) -> list[str]:
        names = self._stored_ids(jobs)
        is_one_statement = "delete_ended" not in self._sql
        run = self._database.perform if is_one_statement else self._database.transaction
        buried = await run(lambda: self._end_idle_steps([*names], reason, State.BURIED))
        return [names[job] for job in buried]

    async def cancellations(self, jobs: Sequence[str]) -> dict[str, str]:
        names = self._stored_ids(jobs)
        rows = await self._rows("cancellations", id=self._database.texts([*names]))
        return {names[job]: reason for job, reason in rows}

    async def wait_for_change(self, since: int, wait: float) -> bool:
        until = self._clock.monotonic() + wait
        await self._database.open()
        with self._database.wake_ups(f"c:{self._namespace}") as wake_ups:
            while True:
                wake_ups.clear()
                rows = await self._rows("epoch")
                if (rows[0][0] if rows else 0) != since:
                    return True
                left = until - self._clock.monotonic()
                if left <= 0:
                    return False
                await wake_ups.wait(min(left, self._database.max_wait))

    async def _change(self, *queries: str, **values: str) -> int:
        """Run the queries and return the new epoch."""

        def steps() -> Steps[int]:
            parameters = self._values(**values)
            for query in queries:
                yield self._sql[query], parameters
            rows = yield self._sql["next_epoch"], parameters
            return int(rows[0][0])

        return await self._database.transaction(steps)

    def _cancel_steps(self, jobs: Iterable[str], reason: str) -> Steps[dict[str, State]]:
        found: dict[str, State] = {}
        left = [*jobs]
        for _ in range(_MAX_ROUNDS):  # a job may start, or return to its queue, in between
            found |= yield from self._cancel_once_steps(left, reason)
            left = [job for job in left if job not in found]
            if not left:
                break
        if State.RUNNING in found.values():
            yield self._sql["next_epoch"], self._values()
        return found

    def _cancel_once_steps(self, jobs: Sequence[str], reason: str) -> Steps[dict[str, State]]:
        cancelled = yield from self._end_idle_steps(jobs, reason, State.CANCELLED)
        values = self._end_values(jobs, reason, State.CANCELLED)
        running = yield self._sql["ask_to_stop"], values
        final = yield self._sql["final_states"], values
        return (
            {job: State(state) for job, state in final}
            | {row[0]: State.RUNNING for row in running}
            | dict.fromkeys(cancelled, State.CANCELLED)
        )

    def _end_idle_steps(self, jobs: Sequence[str], reason: str, final: State) -> Steps[list[str]]:
        """Turn those of these jobs that do not run into records, and return their ids."""
        values = self._end_values(jobs, reason, final)
        ended = yield self._sql["cancel_idle"], values
        if ended and "delete_ended" in self._sql:  # SQLite cannot delete in the same statement
            yield self._sql["free_ended"], values
            yield self._sql["delete_ended"], values
        return [row[0] for row in ended]

    def _end_values(self, jobs: Sequence[str], reason: str, final: State) -> dict[str, Any]:
        ids, text = self._database.texts(jobs), self._database.text(reason)
        return self._values(id=ids, reason=text, final=final.value)
