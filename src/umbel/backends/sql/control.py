"""Cancellations and burials."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from umbel.backends.coordination import CANCELLATIONS
from umbel.backends.sql.ending import end_idle_steps
from umbel.backends.sql.role import SqlRole
from umbel.backends.sql.statements import Steps
from umbel.messages import State

_MAX_ROUNDS = 2


class SqlControl(SqlRole):
    """See ``umbel.backends.control.Control`` for what each method promises."""

    files = ("store.sql", "coordination.sql")

    async def cancel(self, jobs: Sequence[str], reason: str) -> dict[str, State]:
        names = self._stored_ids(jobs)
        found = await self._database.transaction(lambda: self._cancel_steps(names, reason))
        if State.RUNNING in found.values():
            # A transaction of its own: the one above may wait for jobs, and commits of entries for
            # this lock. If this process dies in between, workers find out with their heartbeat.
            await self._database.transaction(self._notify_steps)
        return {name: found[key] for key, name in names.items() if key in found}

    async def bury(self, jobs: Sequence[str], reason: str) -> list[str]:
        names = self._stored_ids(jobs)
        is_one_statement = "delete_ended" not in self._sql
        run = self._database.perform if is_one_statement else self._database.transaction
        buried = await run(lambda: end_idle_steps(self, [*names], reason, State.BURIED))
        return [names[job] for job in buried]

    async def cancellations(self, jobs: Sequence[str]) -> dict[str, str]:
        names = self._stored_ids(jobs)
        rows = await self._rows("cancellations", id=self._database.texts([*names]))
        return {names[job]: reason for job, reason in rows}

    def _cancel_steps(self, jobs: Iterable[str], reason: str) -> Steps[dict[str, State]]:
        found: dict[str, State] = {}
        left = [*jobs]
        for _ in range(_MAX_ROUNDS):  # a job may start, or return to its queue, in between
            found |= yield from self._cancel_once_steps(left, reason)
            left = [job for job in left if job not in found]
            if not left:
                break
        return found

    def _notify_steps(self) -> Steps[None]:
        """Change the revision of the cancellations, for which workers wait."""
        ((last,),) = yield self._sql["lock_revision"], self._values()
        sections = self._database.texts(["", CANCELLATIONS])
        yield self._sql["change_sections"], self._values(sections=sections, revision=last + 1)

    def _cancel_once_steps(self, jobs: Sequence[str], reason: str) -> Steps[dict[str, State]]:
        cancelled = yield from end_idle_steps(self, jobs, reason, State.CANCELLED)
        values = self._end_values(jobs, reason, State.CANCELLED)
        running = yield self._sql["ask_to_stop"], values
        final = yield self._sql["final_states"], values
        return (
            {job: State(state) for job, state in final}
            | {row[0]: State.RUNNING for row in running}
            | dict.fromkeys(cancelled, State.CANCELLED)
        )

    def _end_values(self, jobs: Sequence[str], reason: str, final: State) -> dict[str, Any]:
        ids, text = self._database.texts(jobs), self._database.text(reason)
        return self._values(id=ids, reason=text, final=final.value)
