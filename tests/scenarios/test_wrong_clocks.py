"""Processes with a wrong clock delete nothing, and jobs run and expire by the store's clock."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from processes import HERE, until
from servers import free_port

from integration.running import rabbitmq
from umbel import Handle, State, Task, Umbel
from umbel.backends import RegisteredWorker
from umbel.messages import fresh_id

if shutil.which("faketime") is None:
    pytest.skip("not run: processes with wrong clocks; no faketime here", allow_module_level=True)

POSTGRES = os.environ.get("UMBEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
REDIS = os.environ.get("UMBEL_TEST_REDIS", "redis://127.0.0.1:6379/0")
DONE = 5


def add(one: int, other: int) -> int:
    raise NotImplementedError("it runs in the workers")


def fail_once() -> int:
    raise NotImplementedError("it runs in the workers")


class ScenarioBackend:
    """A private broker and store, and an application with the right clock."""

    def __init__(self, url: str, folder: Path) -> None:
        broker, _, store = url.partition("|")
        self.namespace = f"clocks-{fresh_id()[-8:]}"
        self._on_redis = url.endswith(REDIS)
        self.app = Umbel(broker=broker, store=store or None, namespace=self.namespace)
        self._tasks: dict[str, Task[..., int]] = {
            "add": self.app.task(name="clock_tasks.add")(add),
            "fail_once": self.app.task(name="clock_tasks.fail_once")(fail_once),
        }
        self._environment = {
            **os.environ,
            "UMBEL_BROKER": broker,
            **({"UMBEL_STORE": store} if store else {}),
            "UMBEL_BACKLOG": "none",
            "UMBEL_NAMESPACE": self.namespace,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
        }
        self._log = (folder / "processes.log").open("ab")
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, clock: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start an ``umbel`` process whose wall clock is wrong by this much."""
        command = [sys.executable, "-m", "umbel", "-A", "clock_tasks:app", *arguments]
        process = subprocess.Popen(
            [*_wrong(clock), *command],
            env=self._environment | environment,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # the command waits for a child process of its own
        )
        self._started.append(process)
        return process

    def worker(self, clock: str, **environment: str) -> subprocess.Popen[bytes]:
        arguments = ("worker", "--lease", "3", "--io", "4", "--cpu", "4")
        return self.start(clock, *arguments, **environment)

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)

    def published_by(self, clock: str, **environment: str) -> list[Handle[int]]:
        """Publish from a process with such a clock; see ``clock_tasks``."""
        output = subprocess.run(
            [*_wrong(clock), sys.executable, "-m", "clock_tasks"],
            env=self._environment | environment,
            check=True,
            stdout=subprocess.PIPE,
            timeout=120,
        )
        return [self.app.handle(job) for job in output.stdout.decode().split()]

    def call(self, task: str, *args: int, **options: Any) -> Handle[int]:
        """Publish from the test process."""
        return self._tasks[task].options(**options).delay(*args)

    def beats(self) -> int:
        """Return the lowest number of heartbeats of any worker."""

        async def look() -> list[RegisteredWorker]:
            backend = self.app.backend.open()
            try:
                return await backend.registry.workers()
            finally:
                await backend.close()

        return min((member.heartbeats for member in asyncio.run(look())), default=0)

    def close(self) -> None:
        for process in self._started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._log.close()
        self.app.close()
        if self._on_redis:
            with redis.Redis.from_url(REDIS) as client:
                for key in client.scan_iter(match=f"umbel:{{{self.namespace}}}*", count=1000):
                    client.delete(key)


def _wrong(clock: str) -> list[str]:
    return ["faketime", "--exclude-monotonic", "-f", clock] if clock else []


@pytest.fixture
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ScenarioBackend]:
    with ExitStack() as stack:
        backend = ScenarioBackend(stack.enter_context(_server(request.param, tmp_path)), tmp_path)
        stack.callback(backend.close)
        yield backend


@contextmanager
def _server(name: str, folder: Path) -> Iterator[str]:
    """Yield the address of an unused server or pair, and remove its data after the block."""
    carrier, _, store = name.rpartition("+")
    with ExitStack() as stack:
        carried = f"{stack.enter_context(rabbitmq())}|" if carrier else ""
        if store == "sqlite":
            yield f"{carried}sqlite:///{folder}/umbel.db"
        elif store == "redis":
            yield f"{carried}{REDIS}"
        else:
            schema = f"umbel_clocks_{fresh_id()[-8:]}"
            stack.callback(_drop, schema)
            asyncio.run(Umbel(f"{POSTGRES}?schema={schema}").backend.migrate())
            yield f"{carried}{POSTGRES}?schema={schema}"


def _drop(schema: str) -> None:
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        connection.execute(f'drop schema if exists "{schema}" cascade')


def _finish_some(backend: ScenarioBackend) -> list[Handle[int]]:
    """Return jobs that were finished by a worker with the right clock, which has stopped."""
    worker = backend.worker("")
    done = [backend.call("add", one, one) for one in range(DONE)]
    assert [job.get(timeout=120) for job in done] == [2 * one for one in range(DONE)]
    backend.stop(worker)
    return done


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


SERVERS = ["postgres", "redis", "rabbitmq+postgres", "rabbitmq+redis"]


@pytest.mark.parametrize("clock", ["+30d", "-30d"])
@pytest.mark.parametrize("backend", SERVERS, indirect=True)
def test_a_worker_with_a_wrong_clock_works_by_the_clock_of_the_store(
    backend: ScenarioBackend, clock: str
) -> None:
    done = _finish_some(backend)
    later = backend.call("add", 1, 1, delay=3600)
    in_time = backend.call("add", 2, 2, expires=3600)
    again = backend.call("fail_once")
    soon = backend.call("add", 3, 3, delay=0.5)
    backend.worker(clock)
    assert (in_time.get(timeout=120), again.get(timeout=120), soon.get(timeout=120)) == (4, 2, 6)
    until(lambda: backend.beats() > 3, "some rounds of upkeep")
    assert later.state is State.SCHEDULED
    assert [job.state for job in done] == [State.SUCCEEDED] * DONE


@pytest.mark.parametrize("clock", ["-60s", "-30d", "+30d"])
@pytest.mark.parametrize("backend", SERVERS, indirect=True)
def test_delays_and_expiries_of_a_publisher_with_a_wrong_clock_count_by_the_clock_of_the_store(
    backend: ScenarioBackend, clock: str
) -> None:
    backend.worker("")
    at_once, soon, later = backend.published_by(clock)
    assert (at_once.get(timeout=120), soon.get(timeout=120)) == (2, 4)
    assert later.state is State.SCHEDULED


@pytest.mark.parametrize("backend", ["postgres", "redis"], indirect=True)
def test_behind_a_router_no_process_but_the_store_needs_the_right_clock(
    backend: ScenarioBackend,
) -> None:
    port = free_port()
    address = f"umbel+tcp://127.0.0.1:{port}"
    done = _finish_some(backend)
    backend.start("-1d", "router", "--listen", address)
    until(lambda: _answers(port), "the router to listen")
    link = {"UMBEL_BROKER": address}
    backend.worker("+30d", **link)
    until(lambda: backend.beats() > 0, "the worker to register")
    at_once, soon, later = backend.published_by("-60s", **link)
    assert (at_once.get(timeout=120), soon.get(timeout=120)) == (2, 4)
    assert backend.call("fail_once").get(timeout=120) == 2
    until(lambda: backend.beats() > 3, "some rounds of upkeep")
    assert later.state is State.SCHEDULED
    assert [job.state for job in done] == [State.SUCCEEDED] * DONE


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another worker"])
@pytest.mark.parametrize("backend", ["sqlite", "rabbitmq+sqlite"], indirect=True)
def test_a_worker_on_a_file_whose_clock_is_ahead_deletes_nothing(
    backend: ScenarioBackend, beside: bool
) -> None:
    done = _finish_some(backend)
    if beside:
        backend.worker("")
    backend.worker("+30d")
    until(lambda: backend.beats() > 3, "some rounds of upkeep")
    assert [job.state for job in done] == [State.SUCCEEDED] * DONE
