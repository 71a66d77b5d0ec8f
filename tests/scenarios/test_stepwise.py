"""An import of many steps continues after the last completed step, whenever its worker is killed.

Small by default; ``UMBEL_STEPS=1000 UMBEL_STEP_KILLS=20`` is the full size.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
import stepwise_tasks as tasks
from processes import HERE, until

from umbel import State, Umbel
from umbel.messages import Record, Step, fresh_id

STEPS = int(os.environ.get("UMBEL_STEPS", "60"))
KILLS = int(os.environ.get("UMBEL_STEP_KILLS", "2"))
SECONDS = 0.003
"""The duration of a step, so that some kills happen within one."""
LEASE = 1.0
HOST = "127.0.0.1"
POSTGRES = os.environ.get("UMBEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")


pytestmark = pytest.mark.slow


def needs(name: str, port: int) -> None:
    try:
        socket.create_connection((HOST, port), 2).close()
    except OSError as error:
        pytest.skip(f"not run on {name}: it does not answer ({error})")


# --- backends ------------------------------------------------------------------------------------


class ScenarioBackend:
    """A backend for workers, and the database with the imported rows, if there is one."""

    def __init__(self, name: str, settings: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.namespace = f"steps-{os.getpid()}-{fresh_id()[-6:]}"
        self.settings = {"UMBEL_NAMESPACE": self.namespace, "UMBEL_BACKLOG": "none", **settings}
        self.log = folder / "steps.log"
        self.log.touch()
        self._worker_log = (folder / "workers.log").open("ab")
        how = {key.removeprefix("UMBEL_").lower(): value for key, value in self.settings.items()}
        self.app = Umbel(**how)  # type: ignore[arg-type]
        asyncio.run(self.app.backend.migrate())

    @property
    def store(self) -> str:
        return self.settings.get("UMBEL_STORE", self.settings["UMBEL_BROKER"])

    def connect(self) -> Any:
        if self.store.startswith("sqlite"):
            return sqlite3.connect(self.store.removeprefix("sqlite:///"), timeout=30)
        return psycopg.connect(self.store.partition("?")[0], options=_path(self.store))

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            cursor = connection.execute(statement)
            rows: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
            connection.commit()
            return rows

    def worker(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "umbel", "-A", "stepwise_tasks:app", "worker"),
                *("--io", "1", "--cpu", "1", "--lease", str(LEASE)),
            ],
            env={
                **os.environ,
                **self.settings,
                **({"PGOPTIONS": _path(self.store)} if "postgres" in self.store else {}),
                "PYTHONPATH": path.rstrip(os.pathsep),
                "STEPS_LOG": str(self.log),
            },
            stdout=self._worker_log,
            stderr=self._worker_log,
        )

    def executed(self) -> list[int]:
        """Return the executed steps in order, including repetitions."""
        return [int(line) for line in self.log.read_text().split()]

    def record_and_steps(self, job: str) -> tuple[Record, list[Step]]:
        async def answer() -> tuple[Record, list[Step]]:
            operations = self.app.operations()
            try:
                return await operations.job(job), await operations.steps(job)
            finally:
                await operations.close()

        return asyncio.run(answer())

    def close(self) -> None:
        self.app.close()
        self._worker_log.close()


def _path(url: str) -> str:
    """Return the option that makes unqualified tables those of the test's private schema."""
    return f"-c search_path={url.rpartition('schema=')[2]}"


@pytest.fixture
def postgres() -> Iterator[str]:
    """Create a private schema."""
    needs("PostgreSQL", 5432)
    schema = f"umbel_steps_{os.getpid()}_{fresh_id()[-6:]}"
    yield f"{POSTGRES}?schema={schema}"
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        connection.execute(f'drop schema if exists "{schema}" cascade')


@pytest.fixture
def vhost() -> Iterator[str]:
    needs("RabbitMQ", 5672)
    if shutil.which("rabbitmqctl") is None:
        pytest.skip("not run on RabbitMQ: no rabbitmqctl to make a virtual host with")
    name = f"umbel-steps-{os.getpid()}-{fresh_id()[-6:]}"

    def rabbitmqctl(*command: str) -> None:
        quiet = subprocess.DEVNULL
        subprocess.run(["rabbitmqctl", "-q", *command], check=True, stdout=quiet, cwd="/")

    rabbitmqctl("add_vhost", name)
    rabbitmqctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
    yield f"amqp://guest:guest@{HOST}:5672/{quote(name, safe='')}"
    rabbitmqctl("delete_vhost", name)


@pytest.fixture
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ScenarioBackend]:
    name: str = request.param
    broker, _, store = name.partition(" + ")
    if store:
        needs(broker, {"RabbitMQ": 5672, "NATS": 4222}[broker])
    urls = {
        "SQLite": lambda: f"sqlite:///{tmp_path}/umbel.db",
        "PostgreSQL": lambda: request.getfixturevalue("postgres"),
        "Redis": lambda: f"redis://{HOST}:6379/0",
        "RabbitMQ": lambda: request.getfixturevalue("vhost"),
        "NATS": lambda: f"nats://{HOST}:4222",
    }
    if name == "Redis":
        needs(name, 6379)
    settings = {"UMBEL_BROKER": urls[broker]()} | ({"UMBEL_STORE": urls[store]()} if store else {})
    backend = ScenarioBackend(name, settings, tmp_path)
    yield backend
    backend.close()
    if broker == "Redis":
        _clean_redis(backend.namespace)
    elif broker == "NATS":
        asyncio.run(_clean_nats(backend.namespace))


def _clean_redis(namespace: str) -> None:
    import redis

    with redis.Redis(HOST, 6379) as client:
        for key in client.scan_iter(match=f"umbel:{{{namespace}*", count=1000):
            client.delete(key)


async def _clean_nats(namespace: str) -> None:
    import nats

    client = await nats.connect(f"nats://{HOST}:4222")
    manager = client.jetstream()
    for found in await manager.streams_info():
        if found.config.name.partition("+")[0] == namespace:
            await manager.delete_stream(found.config.name)
    await client.close()


# --- killing -------------------------------------------------------------------------------------


def import_and_kill(backend: ScenarioBackend, task: Any) -> str:
    """Run an import to its end and kill its worker KILLS times meanwhile. Return the job's id."""
    job: str = backend.app.publish_many([_bound(backend, task)])[0].id
    worker, pick = backend.worker(), random.Random(7)
    try:
        for kill in range(KILLS):
            so_far = len(backend.executed())
            wanted = max((kill + 1) * STEPS // (KILLS + 1), so_far + 1)
            until(partial(_has_done, backend, worker, wanted), f"{wanted} steps", every=0.001)
            # At any point: within a step, while its result is stored, or between two steps.
            time.sleep(pick.uniform(0, 4 * SECONDS))
            worker.kill()
            worker.wait()
            worker = backend.worker()
        until(
            lambda: backend.record_and_steps(job)[0].state.finished, "the import to end", every=0.1
        )
    finally:
        worker.kill()
        worker.wait()
    return job


def _has_done(backend: ScenarioBackend, worker: subprocess.Popen[bytes], steps: int) -> bool:
    return len(backend.executed()) >= steps or worker.poll() is not None


def _bound(backend: ScenarioBackend, task: Any) -> Any:
    """Return the call, bound to this test's application."""
    bound = backend.app.registry.get(task.name)
    if bound is None:
        backend.app._bind(task)
    return task.s(STEPS, SECONDS)


def check(
    backend: ScenarioBackend, job: str, capsys: pytest.CaptureFixture[str], what: str
) -> Counter[int]:
    record, steps = backend.record_and_steps(job)
    times = Counter(backend.executed())
    repeated = times.total() - STEPS
    stopped = sum(attempt.ended == "interrupted" for attempt in record.attempts)
    with capsys.disabled():
        print(
            f"\n  {backend.name}, {what}: {STEPS} steps, {KILLS} kills ({record.deaths} deaths"
            f" counted, {stopped} times stopped): {times.total()} executed, {repeated} repeated"
        )
    assert record.state is State.SUCCEEDED, record.reason
    assert backend.app.codec.decode(record.result) == sum(range(STEPS))  # type: ignore[arg-type]
    assert [one.number for one in steps] == list(range(1, STEPS + 1))
    assert set(times) == set(range(STEPS))
    # On a busy machine a worker may send no heartbeat for most of a lease; then it stops, too.
    ended = Counter(attempt.ended for attempt in record.attempts)
    assert {*ended} <= {"lost", "interrupted", "succeeded"}
    assert 0 <= repeated <= KILLS + ended["interrupted"], "more than the steps in flight"
    assert 1 <= record.deaths <= KILLS
    return times


ALL = ["SQLite", "PostgreSQL", "Redis", "RabbitMQ + PostgreSQL"]


@pytest.mark.parametrize("backend", ALL, indirect=True)
def test_at_most_the_step_in_flight_is_repeated_for_each_kill(
    backend: ScenarioBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    check(backend, import_and_kill(backend, tasks.plain), capsys, "step")


@pytest.mark.parametrize("backend", ["SQLite"], indirect=True)
def test_at_most_the_awaited_step_in_flight_is_repeated_for_each_kill(
    backend: ScenarioBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    check(backend, import_and_kill(backend, tasks.plain_async), capsys, "await step")


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        ("SQLite", "transactional"),
        ("PostgreSQL", "transactional_async"),
        ("NATS + PostgreSQL", "transactional"),
    ],
    indirect=["backend"],
)
def test_each_transactional_step_takes_effect_once(
    backend: ScenarioBackend, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    backend.sql("create table imported (n integer)")  # no key, so that a duplicate would be visible
    job = import_and_kill(backend, getattr(tasks, kind))
    check(backend, job, capsys, "step.transaction" if kind == "transactional" else f"await {kind}")
    rows = backend.sql("select n, count(*) from imported group by n order by n")
    assert rows == [(n, 1) for n in range(STEPS)]


def test_the_example_imports_each_row_once_although_it_is_stopped_and_killed(
    tmp_path: Path,
) -> None:
    example = HERE.parents[1] / "examples" / "long_import" / "show.py"
    environment = {**os.environ, "UMBEL_URL": f"sqlite:///{tmp_path}/umbel.db"}

    def start(kills: int) -> subprocess.Popen[str]:
        command = [sys.executable, str(example), "--rows", "200", "--kills", str(kills)]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True
        )

    log = tmp_path / "executed.log"
    first = start(kills=0)
    until(lambda: log.exists() and len(log.read_text().splitlines()) >= 10, "ten steps")
    first.send_signal(signal.SIGINT)
    output, error = first.communicate(timeout=120)
    assert "start it again and it goes on" in error
    second = start(kills=1)
    second_output, error = second.communicate(timeout=240)
    assert second.returncode == 0, error
    assert second_output.splitlines()[0] == output.splitlines()[0], "it is another job"
    assert "200 rows are there, each of them once" in second_output
    times = Counter(log.read_text().split("\n")[:-1])
    assert len(times) == 41
    assert times.total() <= 43, "more than the step in flight was repeated, when stopped and killed"
