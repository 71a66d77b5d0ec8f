"""A running task is never taken from a live worker, and late outcomes under a lost lease are
rejected (promises 2, 3)."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
import tasks_under_test as tasks
from msgspec.structs import replace
from processes import Workers, until
from scenario_client import Client

from umbel import State
from umbel.testing.history import Tracer, check

LEASE = 2.0
"""Seconds. Long enough that heartbeats are in time on a busy machine."""


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(url, tmp_path, "--lease", str(LEASE), "--log-format", "json")
    yield workers
    workers.end()


def two_workers(client: Client, workers: Workers) -> None:
    workers.start(0)
    workers.start(1)
    until(lambda: len(client.workers()) == 2, "both workers to register")


@pytest.mark.parametrize("name", ["work", "work_in_thread"])
def test_a_task_that_runs_for_five_lease_lengths_runs_once(
    client: Client, workers: Workers, name: str
) -> None:
    two_workers(client, workers)
    [job] = client.publish([getattr(tasks, name).s(5 * LEASE)])
    until(lambda: client.record(job).state.finished, "the long task to finish")
    history = check([job], client.records(), Tracer(workers.traces).read())
    assert not history.violations
    assert history.starts == 1
    assert [attempt.ended for attempt in client.record(job).attempts] == ["succeeded"]


@pytest.mark.parametrize("name", ["block_the_loop", "hold_the_gil"])
def test_a_task_that_freezes_its_process_for_two_leases_is_recorded_once(
    client: Client, workers: Workers, name: str
) -> None:
    two_workers(client, workers)
    [job] = client.publish([getattr(tasks, name).s(2 * LEASE)])
    until(lambda: client.record(job).state.finished, "the freezing task to finish")
    record = client.record(job)
    ended = Counter(attempt.ended for attempt in record.attempts)
    # One that holds the interpreter stops its own heart as well. It may then be taken for dead, as
    # often as it is tried; but no run that was taken away is ever recorded as done.
    assert ended["succeeded"] == (record.state is State.SUCCEEDED)
    assert record.state is State.SUCCEEDED or record.reason.startswith("lapses: ")
    until(lambda: client.record(job).deaths == 0, "the workers to report that they did not die")
    if name == "block_the_loop":
        assert dict(ended) == {"succeeded": 1}, "the heart must beat beside a blocked loop"


def test_a_worker_that_was_frozen_reports_that_it_has_not_died(
    client: Client, workers: Workers
) -> None:
    two_workers(client, workers)
    [job] = client.publish([tasks.work_until_file_exists.s(str(workers.traces / "go"))])
    until(lambda: client.record(job).state is State.RUNNING, "the task to start")
    holder = int(str(client.record(job).worker).removeprefix("worker-"))
    workers.signal(holder, signal.SIGSTOP)
    until(lambda: client.record(job).deaths == 1, "the other worker to take it for dead")
    workers.signal(holder, signal.SIGCONT)
    until(lambda: client.record(job).deaths == 0, "the frozen one to report that it was alive")
    (workers.traces / "go").touch()
    until(lambda: client.record(job).state is State.SUCCEEDED, "the task to finish")
    assert client.record(job).deaths == 0


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Lock the database so that no worker can write a heartbeat."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
            connection.execute("begin immediate")
            yield
            connection.execute("rollback")
    else:
        with psycopg.connect(url) as connection:
            connection.execute("lock table umbel.worker in access exclusive mode")
            yield
            connection.rollback()


def test_a_database_locked_for_longer_than_a_lease_counts_as_no_death(
    client: Client, workers: Workers, url: str
) -> None:
    if url.startswith("redis") or "|" in url:
        pytest.skip("only a database of tables can be locked")
    two_workers(client, workers)
    pipe = workers.traces / "pipe"
    os.mkfifo(pipe)
    [job] = client.publish([tasks.read_in_thread.s(str(pipe))])
    until(lambda: client.record(job).state is State.RUNNING, "the task to start")
    holder = str(client.record(job).worker)

    def stopped() -> bool:
        lines = workers.output().splitlines()
        return any("lost its leases" in line and holder in line for line in lines)

    with locked(url):
        until(stopped, "its worker to stop what it runs")
    until(lambda: bool(client.record(job).attempts), "the job to go back")
    assert {attempt.ended for attempt in client.record(job).attempts} == {"lost"}
    until(lambda: client.record(job).deaths == 0, "the workers to report that they did not die")

    def finished() -> bool:
        with suppress(OSError):  # the run that goes on may not have opened it yet
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return client.record(job).state.finished

    until(finished, "the task to finish")
    assert (client.record(job).state, client.record(job).deaths) == (State.SUCCEEDED, 0)


def test_a_zombie_that_wakes_with_an_old_lease_is_refused(client: Client, workers: Workers) -> None:
    two_workers(client, workers)
    [job] = client.publish([tasks.work.s(3 * LEASE)])
    ended = Tracer(workers.traces)
    until(lambda: bool(ended.read()), "the task to start")
    holder = int(str(client.record(job).worker).removeprefix("worker-"))
    workers.signal(holder, signal.SIGSTOP)
    until(lambda: client.record(job).state.finished, "the other worker to take over and finish")
    first = client.record(job)
    workers.signal(holder, signal.SIGCONT)
    until(lambda: "lost its leases" in workers.output(), "the zombie to notice")
    until(lambda: client.record(job).deaths == 0, "the zombie to report that it was alive")
    assert first.state is State.SUCCEEDED
    assert first.worker != f"worker-{holder}"
    outcome = replace(client.record(job), deaths=first.deaths)
    assert outcome == first, "the zombie's outcome changed the record"
    assert Counter(t.what for t in ended.read())["start"] == 2
