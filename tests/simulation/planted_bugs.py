"""Bugs to plant: each breaks one promise and returns texts that the auditor may report."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from umbel.backends import WorkerEntry
from umbel.backends.sqlite import lapses as sqlite_lapses
from umbel.backends.sqlite import registry as sqlite_registry
from umbel.backends.sqlite import settling as sqlite_settling
from umbel.backends.sqlite.broker import SqliteBroker
from umbel.backends.sqlite.job_rows import SQL
from umbel.backends.sqlite.registry import SqliteRegistry
from umbel.backends.sqlite.transactions import write_transaction
from umbel.errors import Unavailable
from umbel.messages import Lease, Settlement
from umbel.resilience import Verdict
from umbel.router import DeadWorkerReaper, Router
from umbel.worker import heartbeat as heart
from umbel.worker.consumer import Consumer
from umbel.worker.heartbeat import Heartbeat

Plant = Callable[[pytest.MonkeyPatch], tuple[str, ...]]
_OVERLAP = ("believes in fence", "which it lost", "it runs, and was put back")


def change(monkeypatch: pytest.MonkeyPatch, query: str, old: str, new: str) -> None:
    """Replace the pattern in a query of the broker with another text."""
    changed, times = re.subn(old, new, SQL[query])
    assert times, f"{query} has changed: plant the bug anew"
    monkeypatch.setitem(SQL, query, changed)


def settle_without_a_fence(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    for query in ("finish", "delete_leased", "again"):
        change(monkeypatch, query, " and owner = :owner and fence = :fence", "")
    return ("settle",)


def acknowledge_before_the_record(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Use two transactions: one removes the job, the other writes its record."""
    settle = SqliteBroker.settle

    async def in_two_steps(self: SqliteBroker, settlements: Sequence[Settlement]) -> list[Lease]:
        rows: list[Any] = []

        def take(connection: sqlite3.Connection) -> None:
            for settlement in settlements:
                lease = settlement.lease
                held = (lease.job, lease.owner, lease.fence)
                where = "from job where id = ? and owner = ? and fence = ?"
                rows.extend(connection.execute(f"select * {where}", held))
                connection.execute(f"delete {where}", held)

        def put(connection: sqlite3.Connection) -> None:
            with write_transaction(connection) as cursor:
                for row in rows:
                    marks = ", ".join("?" * len(row))
                    cursor.execute(f"insert into job values ({marks})", row)

        await self._database.run(take)
        await self._database.run(put)
        return await settle(self, settlements)

    monkeypatch.setattr(SqliteBroker, "settle", in_two_steps)
    return ("is lost: settle removed it without a record",)


def never_stop_after_losing_the_lease(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.setattr(heart, "FENCE_AT", 100.0)
    return _OVERLAP


def accept_heartbeats_of_a_removed_worker(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    heartbeat = SqliteRegistry.heartbeat

    async def always_alive(self: SqliteRegistry, incarnation: str, **fields: Any) -> bool:
        await heartbeat(self, incarnation, **fields)
        return True

    extend = Router.extend

    async def nothing_lost(self: Router, *arguments: Any) -> list[Lease]:
        await extend(self, *arguments)
        return []

    monkeypatch.setattr(SqliteRegistry, "heartbeat", always_alive)
    monkeypatch.setattr(Router, "extend", nothing_lost)
    return _OVERLAP


def claim_paused_jobs(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.setitem(SQL, "pauses", f"{SQL['pauses']} and false")
    paused = (
        "and task not in (select name from pause where namespace = :namespace and scope = 'task'"
        " and until > :now)"
    )
    change(monkeypatch, "claim", re.escape(paused), "")
    return ("is paused",)


def recover_jobs_of_live_workers(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    alive = re.escape("and not exists (select 1 from worker where incarnation = job.owner)")
    change(monkeypatch, "orphans", alive, "")
    return ("its owner lives",)


def count_a_death_twice(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    change(monkeypatch, "count_death", r"deaths = .*?deaths.*? \+ 1", "deaths = deaths + 2")
    return ("deaths went from",)


def blame_every_job(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    def judge(deaths: Sequence[int]) -> list[Verdict]:
        return [Verdict(blamed=True, within=0.0) for _ in deaths]

    monkeypatch.setattr(sqlite_settling, "judge", judge)
    return ("was blamed",)


def claim_under_the_same_fence(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    change(monkeypatch, "claim", r"fence = .*? \+ 1", "fence = max(fence, 1)")
    return ("the fence went from 1 to 1",)


def claim_for_a_removed_worker(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.setitem(SQL, "worker_name", "select 'dead'")
    return ("which is not registered",)


def claim_more_than_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    change(monkeypatch, "claim", "limit :limit", "limit :limit + 1")
    return ("took",)


def count_an_interruption(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    change(monkeypatch, "again", r"\+ :cost", "+ 1")
    return ("attempt 1 became 2",)


def confirm_a_pause_too_soon(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    def set_pause_epoch(self: Consumer, epoch: int) -> None:
        self.epoch = self._new_epoch = epoch

    monkeypatch.setattr(Consumer, "set_pause_epoch", set_pause_epoch)
    return ("has confirmed that",)


def recover_claims_that_were_just_delivered(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    extend = SqliteBroker.extend

    async def at_once(self: SqliteBroker, owner: str, held: Any, older_than: float) -> list[Lease]:
        return await extend(self, owner, held, 0.0)

    monkeypatch.setattr(SqliteBroker, "extend", at_once)
    return _OVERLAP


def unregister_without_returning_jobs(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    async def leave(self: Router, incarnation: str) -> None:
        await self.roles.registry.unregister(incarnation)

    monkeypatch.setattr(Router, "unregister", leave)
    return ("left in good order",)


def ignore_reports_of_lapses(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A worker that was alive is still counted as dead."""
    monkeypatch.setattr(sqlite_registry, "report_lapses", lambda *arguments: None)
    return ("deaths went from",)


def uncount_too_many_deaths(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    query = sqlite_lapses.SQL["correct_live"].replace("deaths - 1", "0")
    monkeypatch.setitem(sqlite_lapses.SQL, "correct_live", query)
    return ("deaths went from",)


def reap_by_the_time_before_the_answer(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A heartbeat that arrives during the query is treated as an older one."""

    async def run_once(self: DeadWorkerReaper) -> list[str]:
        now = self._clock.monotonic()
        try:
            members = await self._registry.workers()
        except Unavailable:
            self._seen = {}
            raise
        seen: dict[str, tuple[int, float]] = {}
        for member in members:
            entry: WorkerEntry = member.entry
            beat, since = self._seen.get(entry.incarnation, (-1, now))
            seen[entry.incarnation] = (
                member.heartbeats,
                since if beat == member.heartbeats else now,
            )
            if beat == member.heartbeats and now - since > entry.lease:
                await self._registry.remove(entry.incarnation, member.heartbeats)
        self._seen = seen
        return await self._broker.recover()

    monkeypatch.setattr(DeadWorkerReaper, "run_once", run_once)
    return ("was ended after",)


def wait_for_control_without_heartbeats(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    async def rest(self: Heartbeat, intake: Any, beaten: float | None) -> None:
        try:
            if beaten is None:
                self._control_changed = True
            else:
                await self._wait_for_control(intake, self._lease / 3)
        except Unavailable:
            pass
        await asyncio.sleep(self._lease / 10)

    monkeypatch.setattr(Heartbeat, "_rest", rest)
    return _OVERLAP


def admit_one_too_many(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    change(monkeypatch, "gate", "select held", "select max(held - 1, 0)")
    return ("is held by", "no job is live, and")  # the count of held slots is wrong, too


def assign_a_pool_member_twice(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    change(monkeypatch, "free_members", "and job is null", "")
    return ("is held by",)


def keep_the_slots_of_returned_jobs(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    change(monkeypatch, "again", "slots = null", "slots = slots")
    change(monkeypatch, "count_death", "slots = null", "slots = slots")
    return ("it still holds", "never finished", "is put off and holds")


def ignore_a_free_slot(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    change(monkeypatch, "finish_turn", "next_check = :next_check", "next_check = null")
    return ("never finished",)


def ignore_the_waiting_list_of_a_paused_task(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The waiting list of a paused task is treated as empty."""
    monkeypatch.setitem(SQL, "has_waiting_job", "select 1 where false")
    return ("never finished",)


PLANTED_GATES: tuple[Plant, ...] = (
    admit_one_too_many,
    assign_a_pool_member_twice,
    keep_the_slots_of_returned_jobs,
    ignore_a_free_slot,
    ignore_the_waiting_list_of_a_paused_task,
)

PLANTED: tuple[Plant, ...] = (
    settle_without_a_fence,
    acknowledge_before_the_record,
    never_stop_after_losing_the_lease,
    accept_heartbeats_of_a_removed_worker,
    claim_paused_jobs,
    recover_jobs_of_live_workers,
    count_a_death_twice,
    blame_every_job,
    claim_under_the_same_fence,
    claim_for_a_removed_worker,
    claim_more_than_was_asked_for,
    count_an_interruption,
    confirm_a_pause_too_soon,
    recover_claims_that_were_just_delivered,
    unregister_without_returning_jobs,
    ignore_reports_of_lapses,
    uncount_too_many_deaths,
    reap_by_the_time_before_the_answer,
    wait_for_control_without_heartbeats,
)
