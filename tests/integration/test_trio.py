"""Trio tasks run beside asyncio tasks, are stopped like them, and do not affect them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sniffio
import trio
from running import DEADLINE, Gauge, Heard, Places, Running, Signal, ended, finished, until, working

from umbel import Retry, Snooze, State, Umbel, WorkerOptions, current, retry
from umbel.errors import JobCancelled
from umbel.telemetry import events


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Umbel]:
    with Places().app("memory", tmp_path) as app:
        yield app


async def seen(signal: Signal) -> None:
    """Wait for a signal in Trio."""
    with trio.fail_after(60):
        while not signal:
            await trio.sleep(0.005)


# --- running ---------------------------------------------------------------------------------


def test_a_trio_task_runs_under_trio(app: Umbel) -> None:
    @app.task(loop="trio")
    async def work(n: int) -> list[Any]:
        await trio.sleep(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 0)
        return [sniffio.current_async_library(), n]

    with working(app):
        assert work.delay(5).get(timeout=DEADLINE) == ["trio", 5]


def test_trio_and_asyncio_tasks_run_at_the_same_time(app: Umbel) -> None:
    trio_runs, asyncio_runs = Signal("trio"), Signal("asyncio")

    @app.task(loop="trio")
    async def on_trio() -> str:
        trio_runs.set()
        await seen(asyncio_runs)
        return sniffio.current_async_library()

    @app.task
    async def on_asyncio() -> str:
        asyncio_runs.set()
        await trio_runs.seen()
        return sniffio.current_async_library()

    with working(app):
        handles = [on_trio.delay(), on_asyncio.delay()]
        assert [handle.get(timeout=DEADLINE) for handle in handles] == ["trio", "asyncio"]


def test_many_trio_tasks_share_the_io_budget(app: Umbel) -> None:
    gauge, full = Gauge(), Signal("the budget to be used")

    @app.task(loop="trio")
    async def work() -> None:
        with gauge:
            if gauge.now == 3:
                full.set()
            await seen(full)

    with working(app, io=3):
        for handle in app.publish_many([work.s() for _ in range(12)]):
            handle.get(timeout=DEADLINE)
    assert (gauge.most, gauge.entered) == (3, 12)


def test_a_trio_task_sees_its_job_and_reports_its_progress(app: Umbel) -> None:
    go = Signal("the end")

    @app.task(loop="trio")
    async def work() -> str:
        current.progress(1, of=2)
        await seen(go)
        return current.job.id

    with working(app):
        handle = work.delay()
        until(lambda: handle.record().progress == (1.0, 2.0), "the progress")
        go.set()
        assert handle.get(timeout=DEADLINE) == handle.id


def test_a_trio_task_publishes_and_awaits_results(app: Umbel) -> None:
    @app.task
    async def inner(n: int) -> int:
        return n * 2

    @app.task(loop="trio")
    async def outer(n: int) -> int:
        handle = await inner.adelay(n)
        return await handle

    @app.task(loop="trio")
    async def many(n: int) -> list[int]:
        handles = await app.apublish_many([inner.s(i) for i in range(n)])
        return [await handle for handle in handles]

    with working(app):
        assert outer.delay(4).get(timeout=DEADLINE) == 8
        assert many.delay(3).get(timeout=DEADLINE) == [0, 2, 4]


def test_a_trio_tasks_dedupe_policy_may_be_a_coroutine(app: Umbel) -> None:
    async def known(n: int) -> bool:
        await trio.sleep(0)
        return n == 1

    @app.task(loop="trio", dedupe=known)
    async def work(n: int) -> int:
        return n

    with working(app):
        assert finished(work.delay(1)).state is State.CANCELLED
        assert work.delay(2).get(timeout=DEADLINE) == 2


# --- failing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(),
        StopAsyncIteration(),
        BaseException("base"),
        asyncio.CancelledError(),
        ExceptionGroup("many", [OSError("one"), KeyError("two")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_trio_task_raises_only_that_task_fails(app: Umbel, error: BaseException) -> None:
    runs, go = Signal("the start"), Signal("the end")

    @app.task(loop="trio", retry=0)
    async def bad() -> None:
        raise error

    @app.task(loop="trio")
    async def good() -> str:
        runs.set()
        await seen(go)
        return "unharmed"

    with working(app):
        beside = good.delay()
        runs.wait()
        record = finished(bad.delay())
        assert record.state is State.BURIED
        assert type(error).__name__ in str(record.failure)
        go.set()
        assert beside.get(timeout=DEADLINE) == "unharmed"
        assert good.delay().get(timeout=DEADLINE) == "unharmed"


def test_an_error_in_a_nursery_is_recorded_with_its_parts(app: Umbel) -> None:
    @app.task(loop="trio", retry=0)
    async def bad() -> None:
        async def part() -> None:
            raise OSError("the part that failed")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(part)
            nursery.start_soon(trio.sleep_forever)

    with working(app):
        record = finished(bad.delay())
    assert record.failure is not None
    assert "the part that failed" in record.failure.traceback


def test_a_trio_task_is_retried_snoozed_and_has_sections(app: Umbel) -> None:
    runs: list[int] = []

    @app.task(loop="trio", retry=Retry(1, first=0))
    async def work() -> int:
        runs.append(current.job.attempt)
        if len(runs) == 1:
            raise Snooze(0)
        with retry(1, name="part", first=0):
            if len(runs) == 2:
                raise OSError("section")
        if len(runs) == 3:
            raise OSError("task")
        return len(runs)

    with working(app):
        handle = work.delay()
        assert handle.get(timeout=DEADLINE) == 4
    assert runs == [1, 1, 1, 2]
    assert ended(handle.record()) == ["snoozed", "retry", "retry", "succeeded"]


# --- stopping --------------------------------------------------------------------------------


def test_a_trio_task_is_cancelled(app: Umbel) -> None:
    runs, stopped = Signal("the start"), Signal("its own cleanup")

    @app.task(loop="trio")
    async def work() -> None:
        runs.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            stopped.set()
            raise

    with working(app):
        handle = work.delay()
        runs.wait()
        handle.cancel("enough")
        with pytest.raises(JobCancelled, match="enough"):
            handle.get(timeout=DEADLINE)
    assert stopped


def test_a_trio_task_with_children_is_cancelled_with_them(app: Umbel) -> None:
    inside = Gauge()

    @app.task(loop="trio")
    async def work() -> None:
        async def child() -> None:
            with inside:
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(child)

    with working(app):
        handle = work.delay()
        until(lambda: inside.now == 3, "the children")
        handle.cancel()
        assert finished(handle).state is State.CANCELLED
        assert inside.now == 0


def test_a_trio_task_times_out(app: Umbel) -> None:
    @app.task(loop="trio", timeout=0.1, retry=0)
    async def slow() -> None:
        await trio.sleep_forever()

    with working(app), pytest.raises(TimeoutError, match=r"0\.1 s"):
        slow.delay().get(timeout=DEADLINE)


def test_a_trio_tasks_own_timeout_is_its_own_failure(app: Umbel) -> None:
    @app.task(loop="trio", retry=0)
    async def slow() -> None:
        with trio.fail_after(0.01):
            await trio.sleep_forever()

    with working(app):
        record = finished(slow.delay())
    assert record.failure is not None
    assert record.failure.type == "trio:TooSlowError"


def test_a_cancelled_trio_task_ends_before_it_is_recorded(app: Umbel) -> None:
    """Otherwise its slot would be free, and the job could run again, while it still cleans up."""
    runs, cleaned, release = Signal("the start"), Signal("the cleanup"), Signal("the release")

    @app.task(loop="trio")
    async def work() -> None:
        runs.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.3)
                cleaned.set()

    with working(app):
        handle = work.delay()
        runs.wait()
        handle.cancel()
        until(lambda: handle.state is State.CANCELLED, "the cancellation to be recorded")
        was_clean = bool(cleaned)
        release.set()
        until(lambda: bool(cleaned), "the cleanup")
    assert was_clean


def test_a_trio_task_is_interrupted_when_its_worker_stops(app: Umbel) -> None:
    runs = Signal("the start")

    @app.task(loop="trio", interruptible=True)
    async def work() -> None:
        runs.set()
        await trio.sleep_forever()

    running = Running(app, WorkerOptions(queues=("default",), name="worker", grace=3600))
    handle = work.delay()
    runs.wait()
    running.stop()
    running.join()
    assert (handle.state, ended(handle.record())) == (State.QUEUED, ["interrupted"])


def test_a_worker_with_trio_tasks_stops_and_starts_again(app: Umbel) -> None:
    heard = Heard(app)

    @app.task(loop="trio")
    async def work() -> int:
        return 1

    for _ in range(3):
        with working(app):
            assert work.delay().get(timeout=DEADLINE) == 1
    assert len(heard.all(events.WorkerStopped)) == 3


def test_two_workers_with_trio_tasks_in_one_process(app: Umbel) -> None:
    @app.task(loop="trio")
    async def work(n: int) -> int:
        await trio.sleep(0.001)
        return n

    with working(app, name="one", io=2), working(app, name="two", io=2):
        handles = app.publish_many([work.s(n) for n in range(20)])
        assert [handle.get(timeout=DEADLINE) for handle in handles] == list(range(20))
