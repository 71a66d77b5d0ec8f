"""No job is lost and none is recorded twice, whatever is killed (promises 2, 3 and 5)."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tasks_under_test as tasks
from processes import Workers, until
from scenario_client import Client
from servers import PrivatePostgres

from umbel import State
from umbel.errors import Unavailable
from umbel.testing.history import Tracer, check

WAVE = int(os.environ.get("UMBEL_SCENARIO_JOBS", "6000")) // 6
"""Jobs that are published between two disturbances."""
WORKER_COUNT = 4
ROOM = 50
LEASE = 2.0
KILLS = 6


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(
        url, tmp_path, "--lease", str(LEASE), "--io", str(ROOM), "--log-format", "json"
    )
    yield workers
    workers.end()


def work_off(
    client: Client, workers: Workers, disturb: Callable[[int], None], times: int, longest: float
) -> list[str]:
    """Publish waves of jobs and disturb the workers in the middle of as many; return the ids.

    A disturbance comes while a wave is under way: some of its jobs have finished, and more are left
    than slots. A job that was alone in three workers that died is rightly buried. If a wave was too
    quick, another one follows, so the number of disturbances does not depend on the machine.
    """
    for index in range(WORKER_COUNT):
        workers.start(index)
    until(lambda: len(client.workers()) == WORKER_COUNT, "all workers to register")
    chosen, disturbed, published = random.Random(7), 0, list[str]()

    def live() -> int | None:
        try:
            return client.live()
        except Unavailable:  # the server was restarted just now
            return None

    while disturbed < times:
        # Counted before the wave is published: a slow machine may finish the whole wave first.
        left = before = (live() or 0) + WAVE
        published += client.publish(
            [tasks.work.s(chosen.uniform(0.01, longest)) for _ in range(WAVE)]
        )

        def is_under_way() -> bool:
            nonlocal left
            left = live() or 0
            return left < before  # noqa: B023 - called within this round

        try:
            until(is_under_way, "the first jobs of a wave to finish", every=0.01)
        except AssertionError as error:
            error.add_note(f"{left} of {before} jobs are left; {workers.output()[-4000:]}")
            raise
        if left > WORKER_COUNT * ROOM:
            disturb(disturbed)
            disturbed += 1
    until(lambda: live() == 0, "all jobs to finish", seconds=240, every=0.2)
    return published


@pytest.mark.slow
def test_workers_killed_every_second_lose_nothing_and_record_everything_once(
    client: Client, workers: Workers, capsys: pytest.CaptureFixture[str]
) -> None:
    def kill_one(turn: int) -> None:
        workers.kill(turn % WORKER_COUNT)
        workers.start(turn % WORKER_COUNT)

    published = work_off(client, workers, kill_one, times=KILLS, longest=0.25)

    history = check(published, client.records(), Tracer(workers.traces).read())
    with capsys.disabled():
        print(f"\n  {client.url.split(':')[0]}: {KILLS} kills: {history}")
    assert not history.violations, history.violations[:10]
    assert history.succeeded == len(published)
    assert history.redeliveries > 0, "no kill hit a running job: the test proved nothing"


@pytest.mark.slow
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_server_restarted_five_times_loses_nothing_and_records_everything_once(
    client: Client,
    workers: Workers,
    server: PrivatePostgres,
    capsys: pytest.CaptureFixture[str],
) -> None:
    restarts = 0

    def restart_or_kill(turn: int) -> None:
        nonlocal restarts
        server.stop(("fast", "immediate")[turn % 2])
        server.start()
        restarts += 1
        workers.kill(turn % WORKER_COUNT)
        workers.start(turn % WORKER_COUNT)

    published = work_off(client, workers, restart_or_kill, times=5, longest=0.25)

    history = check(published, client.records(), Tracer(workers.traces).read())
    with capsys.disabled():
        print(f"\n  postgres: {restarts} restarts: {history}")
    assert restarts == 5
    assert not history.violations, history.violations[:10]
    assert history.succeeded == len(published)


def test_a_job_whose_worker_died_three_times_is_buried_with_the_reason(
    client: Client, workers: Workers
) -> None:
    [job] = client.publish([tasks.kill_the_worker.s()])
    deaths = 0

    def buried_or_restart() -> bool:
        nonlocal deaths
        if client.record(job).state is State.BURIED:
            return True
        if not deaths or workers.process(0).poll() is not None:
            workers.start(0)
            deaths += 1
        return False

    until(buried_or_restart, "the job to be buried", seconds=120)
    record = client.record(job)
    assert record.deaths == 3
    assert "3 workers died" in record.reason
    assert [attempt.ended for attempt in record.attempts] == ["lost", "lost", "lost"]
    starts = [trace for trace in Tracer(workers.traces).read() if trace.job == job]
    assert len(starts) == 3


def test_a_job_that_kills_its_workers_does_not_get_other_jobs_buried(
    client: Client, workers: Workers
) -> None:
    [killer] = client.publish([tasks.kill_the_worker.s()])
    innocent = client.publish([tasks.work.s(1.5) for _ in range(20)])
    workers.start(0)
    workers.start(1)

    def all_ended_or_restart() -> bool:
        for index in (0, 1):
            if workers.process(index).poll() is not None:
                workers.start(index)
        return client.live() == 0

    until(all_ended_or_restart, "all jobs to end", seconds=120)
    record = client.record(killer)
    assert record.state is State.BURIED
    assert "workers died" in record.reason
    assert {client.record(job).state for job in innocent} == {State.SUCCEEDED}
    assert max(client.record(job).deaths for job in innocent) >= 2, (
        "no other job was a suspect with it"
    )


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_server_outage_longer_than_a_lease_counts_as_no_death(
    client: Client, workers: Workers, server: PrivatePostgres
) -> None:
    [job] = client.publish([tasks.fragile_work.s(2 * LEASE)])
    workers.start(0)
    workers.start(1)
    until(lambda: client.record(job).state is State.RUNNING, "the job to start")
    server.stop()
    time.sleep(2 * LEASE)
    server.start()
    until(lambda: client.record(job).state.finished, "the job to finish", seconds=60)
    record = client.record(job)
    assert (record.state, record.deaths) == (State.SUCCEEDED, 0)
    assert [attempt.ended for attempt in record.attempts][-1] == "succeeded"
