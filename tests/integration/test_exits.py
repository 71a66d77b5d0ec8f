"""Code that asks the process to end, in a place where the worker does not run the task itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.conftest import HANG, Place
from umbel import Umbel
from umbel.messages import State

TASKS = """
import asyncio
import trio
from umbel import Umbel

app = Umbel()
kept = []


def leave(how):
    raise eval(how)


async def child(how):
    leave(how)


@app.task(name="left_behind", retry=0)
async def left_behind(how: str) -> str:
    kept.append(asyncio.create_task(child(how)))
    await asyncio.sleep(0.05)
    return "done"


@app.task(name="awaited", retry=0)
async def awaited(how: str) -> None:
    await asyncio.create_task(child(how))


@app.task(name="grouped", retry=0)
async def grouped(how: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(child(how))
        group.create_task(asyncio.sleep(600))


@app.task(name="call_soon", retry=0)
async def call_soon(how: str) -> str:
    loop = asyncio.get_running_loop()
    loop.call_soon(leave, how)
    loop.call_later(0.01, leave, how)
    await asyncio.sleep(0.05)
    return "done"


@app.task(name="done_callback", retry=0)
async def done_callback(how: str) -> str:
    future = asyncio.get_running_loop().run_in_executor(None, str)
    future.add_done_callback(lambda _: leave(how))
    await future
    await asyncio.sleep(0.05)
    return "done"


@app.task(name="from_a_thread", retry=0)
async def from_a_thread(how: str) -> None:
    await asyncio.to_thread(leave, how)


@app.task(name="thread_callback", retry=0)
async def thread_callback(how: str) -> str:
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(loop.call_soon_threadsafe, leave, how)
    await asyncio.sleep(0.05)
    return "done"


@app.task(name="trio_nursery", loop="trio", retry=0)
async def trio_nursery(how: str) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child, how)


@app.task(name="trio_callback", loop="trio", retry=0)
async def trio_callback(how: str) -> str:
    trio.lowlevel.current_trio_token().run_sync_soon(leave, how)
    await trio.sleep(0.05)
    return "done"


@app.task(name="trio_system_task", loop="trio", retry=0)
async def trio_system_task(how: str) -> str:
    trio.lowlevel.spawn_system_task(child, how)
    await trio.sleep(0.05)
    return "done"


@app.task(name="trio_probe", loop="trio", retry=0)
async def trio_probe() -> str:
    await trio.sleep(0)
    return "alive"


@app.task(name="slow", retry=0)
async def slow() -> str:
    await asyncio.sleep(1.0)
    return "unharmed"


@app.task(name="slow_trio", loop="trio", retry=0)
async def slow_trio() -> str:
    await trio.sleep(1.0)
    return "unharmed"


@app.task(name="probe", retry=0)
async def probe() -> str:
    return "alive"
"""


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


class WorkerProcess:
    """``umbel worker`` with the tasks above."""

    def __init__(self, place: Place, folder: Path, *options: str) -> None:
        (folder / "exits_app.py").write_text(TASKS)
        self._log = folder / "worker.log"
        environment = {
            **os.environ,
            "UMBEL_URL": place.url,
            "UMBEL_NAMESPACE": place.namespace,
            "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, "-m", "umbel", "-A", "exits_app:app", "worker", *options]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--log-format", "json"], env=environment, stdout=log, stderr=log
            )

    def said(self) -> list[dict[str, Any]]:
        lines = self._log.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def refusals(self) -> list[str]:
        """Return the exits that were requested and refused."""
        told = [line for line in self.said() if "SystemExit or KeyboardInterrupt" in line["event"]]
        assert all("in leave" in line["stack"] for line in told)
        return [line["error"] for line in told]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture(params=["uvloop", "asyncio"])
def worker(request: pytest.FixtureRequest, place: Place, tmp_path: Path) -> Iterator[WorkerProcess]:
    options = ["--no-uvloop"] if request.param == "asyncio" else []
    process = WorkerProcess(place, tmp_path, *options)
    yield process
    process.process.kill()
    process.process.wait()


@pytest.fixture
def send(place: Place) -> Callable[..., Any]:
    app: Umbel = place.app()

    async def any_task(*args: str) -> str: ...

    names = ("slow", "slow_trio", "probe", "trio_probe", *CRASHING, *SILENT, *FAILING)
    tasks = {name: app.task(name=name)(any_task) for name in names}
    return lambda name, *args: tasks[name].delay(*args)


CRASHING = ("trio_callback", "trio_system_task")
"""These end the Trio loop with all tasks in it."""
SILENT = ("left_behind", "call_soon", "done_callback", "thread_callback")
"""These raise in a place where their task does not get the error."""
FAILING = ("awaited", "grouped", "from_a_thread", "trio_nursery")
"""These raise in the task, which fails."""


def test_a_task_that_asks_for_an_exit_outside_of_its_own_coroutine_does_not_end_the_worker(
    worker: WorkerProcess, send: Callable[..., Any]
) -> None:
    for name in SILENT:
        for how in ("SystemExit(3)", "KeyboardInterrupt()"):
            told = worker.refusals().count(how)
            beside = [send("slow"), send("slow_trio")]
            assert send(name, how).get(timeout=HANG) == "done", name
            until(lambda how=how, told=told: worker.refusals().count(how) > told)  # type: ignore[misc]
            assert [handle.get(timeout=HANG) for handle in beside] == ["unharmed"] * 2
    assert worker.stop() == 0


def test_jobs_that_ask_for_an_exit_at_the_same_time_lose_nothing(
    worker: WorkerProcess, send: Callable[..., Any]
) -> None:
    ways = [(name, how) for name in SILENT for how in ("SystemExit(3)", "KeyboardInterrupt()")]
    handles = [send(name, how) for name, how in ways * 20]
    handles += [send("slow") for _ in range(20)]
    found = [handle.get(timeout=HANG) for handle in handles]
    assert found == ["done"] * len(ways) * 20 + ["unharmed"] * 20
    assert worker.stop() == 0


def test_a_task_that_awaits_what_asks_for_an_exit_fails_with_it(
    worker: WorkerProcess, send: Callable[..., Any]
) -> None:
    beside = [send("slow"), send("slow_trio")]
    for name in FAILING:
        for how in ("SystemExit(3)", "KeyboardInterrupt()"):
            handle = send(name, how)
            with pytest.raises(Exception):  # noqa: B017, PT011 - what it is rebuilt as
                handle.get(timeout=HANG)
            record = handle.record()
            assert record.state is State.BURIED
            assert how.partition("(")[0] in str(record.failure), name
    assert [handle.get(timeout=HANG) for handle in beside] == ["unharmed"] * 2
    assert send("trio_probe").get(timeout=HANG) == "alive"
    assert worker.stop() == 0


@pytest.mark.parametrize("name", CRASHING)
def test_a_trio_loop_that_was_ended_by_a_task_is_started_again_and_its_jobs_run_again(
    worker: WorkerProcess, send: Callable[..., Any], name: str
) -> None:
    for how in ("SystemExit(3)", "KeyboardInterrupt()", "ValueError()"):
        beside = [send("slow"), send("slow_trio")]
        until(lambda beside=beside: beside[1].state is State.RUNNING)  # type: ignore[misc]
        bad = send(name, how)
        with pytest.raises(RuntimeError, match="Trio loop crashed while this job ran"):
            bad.get(timeout=HANG)
        assert how.partition("(")[0] in str(bad.record().failure)
        assert [handle.get(timeout=HANG) for handle in beside] == ["unharmed"] * 2
        assert send("trio_probe").get(timeout=HANG) == "alive"
    failed = [line for line in worker.said() if line.get("service") == "trio"]
    assert len(failed) >= 3
    assert worker.stop() == 0


def test_ctrl_c_still_stops_a_worker_after_that(
    worker: WorkerProcess, send: Callable[..., Any]
) -> None:
    assert send("left_behind", "KeyboardInterrupt()").get(timeout=HANG) == "done"
    end = time.monotonic() + HANG
    worker.process.send_signal(signal.SIGINT)
    assert worker.process.wait(end - time.monotonic()) == 0
