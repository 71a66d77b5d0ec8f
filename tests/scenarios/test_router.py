"""A router and workers without credentials: kills lose no job, and connections stay few."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import tasks_under_test as tasks
from processes import HERE, Workers, until
from scenario_client import Client
from servers import PrivatePostgres, free_port

from umbel.testing.history import Tracer, check

pytest.importorskip("proton", reason="not run: links; Qpid Proton is not installed")

JOBS = int(os.environ.get("UMBEL_ROUTER_JOBS", "6000"))
WORKER_COUNT = 4
LEASE = 3.0


class RouterProcess:
    """``umbel router``, started, killed and started again at the same address."""

    def __init__(self, url: str, folder: Path) -> None:
        self._port = free_port()
        self.address = f"umbel+tcp://127.0.0.1:{self._port}"
        self._url = url
        self._log = (folder / "router.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {**os.environ, "UMBEL_URL": self._url, "PYTHONPATH": str(HERE)}
        command = [sys.executable, "-m", "umbel", "-A", "tasks_under_test:app", "router"]
        self._process = subprocess.Popen(
            [*command, "--listen", self.address, "--log-format", "json"],
            env=environment,
            stdout=self._log,
            stderr=self._log,
        )
        until(self._answers, "the router to listen", seconds=60)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), 1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30)

    def output(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._log.close()


@pytest.fixture
def router(url: str, tmp_path: Path) -> Iterator[RouterProcess]:
    router = RouterProcess(url, tmp_path)
    yield router
    router.end()


@pytest.fixture
def lease() -> float:
    return LEASE


@pytest.fixture
def workers(router: RouterProcess, tmp_path: Path, lease: float) -> Iterator[Workers]:
    options = ("--lease", str(lease), "--io", "50", "--log-format", "json")
    workers = Workers(router.address, tmp_path, *options)
    yield workers
    workers.end()


def connections(server: PrivatePostgres) -> int:
    """Return the number of connections except this one and the server's own."""
    with psycopg.connect(server.url) as connection:
        (many,) = connection.execute(
            "select count(*) from pg_stat_activity where backend_type = 'client backend'"
            " and pid <> pg_backend_pid() and application_name not like 'umbel test%'"
        ).fetchone() or (0,)
    return int(many)


@pytest.mark.slow
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_router_and_workers_that_are_killed_lose_nothing(
    client: Client,
    workers: Workers,
    router: RouterProcess,
    server: PrivatePostgres,
    capsys: pytest.CaptureFixture[str],
) -> None:
    published = client.publish([tasks.work.s(0.005) for _ in range(JOBS)])
    client.app.close()
    router.start()
    for index in range(WORKER_COUNT):
        workers.start(index)
    until(lambda: len(client.workers()) == WORKER_COUNT, "all workers to register")
    counted: list[int] = []
    kills = 0

    def done_or_disturb() -> bool:
        nonlocal kills
        left = client.live()
        if left == 0:
            return True
        if left < JOBS * (2 - kills) / 3 and kills < 2:
            router.kill()
            workers.kill(kills)
            router.start()
            workers.start(kills)
            kills += 1
        else:
            counted.append(connections(server))
        return False

    until(done_or_disturb, "all jobs to finish", seconds=240, every=0.2)

    history = check(published, client.records(), Tracer(workers.traces).read())
    with capsys.disabled():
        print(f"\n  router killed {kills} times, {max(counted)} connections at most: {history}")
    assert not history.violations, history.violations[:10]
    assert history.succeeded == JOBS
    assert kills == 2
    # The test's client briefly has connections of its own; the workers have none.
    assert max(counted) <= 10, counted
    assert router.stop() == 0
    assert "Traceback" not in router.output() + workers.output()


@pytest.mark.parametrize("lease", [10.0])  # longer than a busy machine takes to start a router
def test_a_router_outage_shorter_than_a_lease_costs_no_attempt(
    client: Client, workers: Workers, router: RouterProcess, lease: float
) -> None:
    router.start()
    workers.start(0)
    until(lambda: len(client.workers()) == 1, "the worker to register")
    [job] = client.publish([tasks.work.s(2 * lease)])
    until(lambda: client.record(job).state.value == "running", "the task to start")
    router.kill()
    router.start()
    until(lambda: client.record(job).state.finished, "the task to finish")
    record = client.record(job)
    assert [attempt.ended for attempt in record.attempts] == ["succeeded"]


def test_the_death_of_a_worker_behind_a_router_is_noticed_and_its_job_runs_elsewhere(
    client: Client, workers: Workers, router: RouterProcess
) -> None:
    router.start()
    workers.start(0)
    until(lambda: len(client.workers()) == 1, "the worker to register")
    [job] = client.publish([tasks.work.s(0.5)])
    until(lambda: client.record(job).state.value == "running", "the task to start")
    workers.kill(0)
    workers.start(1)
    until(lambda: client.record(job).state.finished, "the other worker to finish it")
    assert [attempt.ended for attempt in client.record(job).attempts] == ["lost", "succeeded"]
