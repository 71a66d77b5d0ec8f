"""A living task is never taken away; a dead hand's outcome is never recorded (promises 2, 3)."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import tasks_under_test as tasks
from desk import Desk
from processes import Workers, until

from umbel import State
from umbel.testing.history import Tracer, check

LEASE = 0.6


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(url, tmp_path, "--lease", str(LEASE), "--log-format", "json")
    yield workers
    workers.end()


def two_workers(desk: Desk, workers: Workers) -> None:
    workers.start(0)
    workers.start(1)
    until(lambda: len(desk.workers()) == 2, "both workers to enlist")


@pytest.mark.parametrize("name", ["work", "work_in_thread"])
def test_a_task_that_runs_for_ten_lease_lengths_runs_once(
    desk: Desk, workers: Workers, name: str
) -> None:
    two_workers(desk, workers)
    [job] = desk.publish([getattr(tasks, name).s(10 * LEASE)])
    until(lambda: desk.record(job).state.finished, "the long task to finish")
    history = check([job], desk.records(), Tracer(workers.traces).read())
    assert not history.violations
    assert history.starts == 1
    assert [attempt.ended for attempt in desk.record(job).attempts] == ["succeeded"]


@pytest.mark.parametrize("name", ["block_the_loop", "hold_the_gil"])
def test_a_task_that_freezes_its_process_for_two_leases_is_recorded_once(
    desk: Desk, workers: Workers, name: str
) -> None:
    two_workers(desk, workers)
    [job] = desk.publish([getattr(tasks, name).s(2 * LEASE)])
    until(lambda: desk.record(job).state.finished, "the freezing task to finish")
    record = desk.record(job)
    ended = Counter(attempt.ended for attempt in record.attempts)
    # One that holds the interpreter stops its own heart as well. It may then be taken for dead, as
    # often as it is tried; but no run that was taken away is ever recorded as done.
    assert ended["succeeded"] == (record.state is State.SUCCEEDED)
    assert record.state is State.SUCCEEDED or record.deaths == 3
    if name == "block_the_loop":
        assert dict(ended) == {"succeeded": 1}, "the heart must beat beside a blocked loop"


def test_a_zombie_that_wakes_with_an_old_lease_is_refused(desk: Desk, workers: Workers) -> None:
    two_workers(desk, workers)
    [job] = desk.publish([tasks.work.s(3 * LEASE)])
    until(lambda: desk.record(job).state is State.RUNNING, "the task to start")
    holder = int(str(desk.record(job).worker).removeprefix("worker-"))
    workers.signal(holder, signal.SIGSTOP)
    until(lambda: desk.record(job).state.finished, "the other worker to take over and finish")
    first = desk.record(job)
    workers.signal(holder, signal.SIGCONT)
    ended = Tracer(workers.traces)
    until(lambda: "lost its leases" in workers.said(), "the zombie to notice")
    assert first.state is State.SUCCEEDED
    assert first.worker != f"worker-{holder}"
    assert desk.record(job) == first, "the zombie's outcome changed the record"
    assert Counter(t.what for t in ended.read())["start"] == 2
