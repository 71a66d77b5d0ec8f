"""Nothing is lost and nothing is recorded twice, whoever is killed (promises 2, 3 and 5)."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tasks_under_test as tasks
from desk import Client
from processes import Workers, until
from servers import PrivatePostgres

from umbel import Signature, State
from umbel.errors import Unavailable
from umbel.testing.history import Tracer, check

JOBS = int(os.environ.get("UMBEL_SCENARIO_JOBS", "6000"))
CREW = 4
ROOM = 50
LEASE = 2.0


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(
        url, tmp_path, "--lease", str(LEASE), "--io", str(ROOM), "--log-format", "json"
    )
    yield workers
    workers.end()


def many_calls(longest: float = 0.1) -> list[Signature[None]]:
    pick = random.Random(7)
    return [tasks.work.s(pick.uniform(0.01, longest)) for _ in range(JOBS)]


def work_off(desk: Client, workers: Workers, disturb: Callable[[int], None]) -> int:
    """Run the crew, disturbing it about once a second, until nothing lives. Returns how often.

    Not before it has finished something since the last time: on a slow machine nobody would ever
    get as far as that. And not when fewer are left than there is room for: a job that was alone in
    three workers that died is buried, and rightly so.
    """
    for index in range(CREW):
        workers.start(index)
    until(lambda: len(desk.workers()) == CREW, "the crew to register")
    disturbed, left = 0, JOBS + 1

    def done_or_disturb() -> bool:
        nonlocal disturbed, left
        before = left
        try:
            left = min(desk.live(), before)
        except Unavailable:  # the server was restarted just now
            return False
        if left <= CREW * ROOM or left == before:
            return left == 0
        disturb(disturbed)
        disturbed += 1
        return False

    until(done_or_disturb, "all jobs to finish", seconds=240, every=1.0)
    return disturbed


@pytest.mark.slow
def test_workers_killed_every_second_lose_nothing_and_record_everything_once(
    desk: Client, workers: Workers, capsys: pytest.CaptureFixture[str]
) -> None:
    published = desk.publish(many_calls())  # type: ignore[arg-type]

    def kill_one(turn: int) -> None:
        workers.kill(turn % CREW)
        workers.start(turn % CREW)

    kills = work_off(desk, workers, kill_one)

    history = check(published, desk.records(), Tracer(workers.traces).read())
    with capsys.disabled():
        print(f"\n  {desk.url.split(':')[0]}: {kills} kills: {history}")
    assert not history.violations, history.violations[:10]
    assert history.succeeded == JOBS
    assert kills >= 3
    assert history.redeliveries > 0, "no kill hit a running job: the test proved nothing"


@pytest.mark.slow
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_server_restarted_five_times_loses_nothing_and_records_everything_once(
    desk: Client,
    workers: Workers,
    server: PrivatePostgres,
    capsys: pytest.CaptureFixture[str],
) -> None:
    published = desk.publish(many_calls(longest=0.25))  # type: ignore[arg-type]
    restarts = 0

    def restart_or_kill(turn: int) -> None:
        nonlocal restarts
        if restarts < 5:
            server.stop(("fast", "immediate")[turn % 2])
            server.start()
            restarts += 1
        workers.kill(turn % CREW)
        workers.start(turn % CREW)

    work_off(desk, workers, restart_or_kill)

    history = check(published, desk.records(), Tracer(workers.traces).read())
    with capsys.disabled():
        print(f"\n  postgres: {restarts} restarts: {history}")
    assert restarts == 5
    assert not history.violations, history.violations[:10]
    assert history.succeeded == JOBS


def test_a_job_whose_worker_died_three_times_is_buried_with_the_reason(
    desk: Client, workers: Workers
) -> None:
    [job] = desk.publish([tasks.kill_the_worker.s()])
    deaths = 0

    def buried_or_restart() -> bool:
        nonlocal deaths
        if desk.record(job).state is State.BURIED:
            return True
        if not deaths or workers.process(0).poll() is not None:
            workers.start(0)
            deaths += 1
        return False

    until(buried_or_restart, "the job to be buried", seconds=120)
    record = desk.record(job)
    assert record.deaths == 3
    assert "3 workers died" in record.reason
    assert [attempt.ended for attempt in record.attempts] == ["lost", "lost", "lost"]
    starts = [trace for trace in Tracer(workers.traces).read() if trace.job == job]
    assert len(starts) == 3


def test_a_job_that_kills_its_workers_takes_no_other_to_the_grave(
    desk: Client, workers: Workers
) -> None:
    [killer] = desk.publish([tasks.kill_the_worker.s()])
    innocent = desk.publish([tasks.work.s(1.5) for _ in range(20)])
    workers.start(0)
    workers.start(1)

    def all_ended_or_restart() -> bool:
        for index in (0, 1):
            if workers.process(index).poll() is not None:
                workers.start(index)
        return desk.live() == 0

    until(all_ended_or_restart, "all jobs to end", seconds=120)
    record = desk.record(killer)
    assert record.state is State.BURIED
    assert "workers died" in record.reason
    assert {desk.record(job).state for job in innocent} == {State.SUCCEEDED}
    assert max(desk.record(job).deaths for job in innocent) >= 2, "nobody was a suspect with it"


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_server_that_is_away_for_longer_than_a_lease_is_no_death(
    desk: Client, workers: Workers, server: PrivatePostgres
) -> None:
    [job] = desk.publish([tasks.fragile_work.s(2 * LEASE)])
    workers.start(0)
    workers.start(1)
    until(lambda: desk.record(job).state is State.RUNNING, "the job to start")
    server.stop()
    time.sleep(2 * LEASE)
    server.start()
    until(lambda: desk.record(job).state.finished, "the job to finish", seconds=60)
    record = desk.record(job)
    assert (record.state, record.deaths) == (State.SUCCEEDED, 0)
    assert [attempt.ended for attempt in record.attempts][-1] == "succeeded"
