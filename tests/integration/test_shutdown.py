"""A worker stops in phases: it loses no job, and starts none after it was asked to stop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from running import (
    DEADLINE,
    Gauge,
    Heard,
    Places,
    Running,
    Signal,
    ask,
    ask_backend,
    ended,
    finished,
    until,
    with_faults,
    working,
)

import umbel.worker.shutdown as phases
from umbel import Retry, State, Umbel, WorkerOptions
from umbel.errors import Unavailable
from umbel.router import DuplicateFilter, Router
from umbel.telemetry import events
from umbel.worker.heartbeat import Heartbeat
from umbel.worker.incarnation import Incarnation

SOON = 20.0
"""Maximum seconds for a stop. Only a stop that hangs takes that long."""


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    places = Places()
    yield places
    places.close()


@pytest.fixture(params=["memory", "postgres"])
def app(request: pytest.FixtureRequest, places: Places, tmp_path: Path) -> Iterator[Umbel]:
    with places.app(request.param, tmp_path) as app:
        yield app


@pytest.fixture
def memory(places: Places, tmp_path: Path) -> Iterator[Umbel]:
    with places.app("memory", tmp_path) as app:
        yield app


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give interrupted tasks half a second to end instead of five seconds."""
    monkeypatch.setattr(phases, "_FORCED_STOP_SECONDS", 0.5)


def start(app: Umbel, **options: Any) -> Running:
    given: dict[str, Any] = {"queues": tuple(app.registry.queues()), "name": "worker", "grace": 60}
    return Running(app, WorkerOptions(**{**given, **options}))


def workers(app: Umbel) -> list[str]:
    return [view.name for view in ask(app, lambda operations: operations.workers())]


# --- nothing runs ----------------------------------------------------------------------------


def test_an_idle_worker_stops_and_leaves_no_row_behind(app: Umbel) -> None:
    heard = Heard(app)
    running = start(app)
    assert workers(app) == ["worker"]
    running.stop()
    running.join(SOON)
    assert workers(app) == []
    assert heard.wait(events.WorkerStopped).abandoned == 0


def test_an_idle_worker_stops_though_its_fetch_would_wait_for_long(app: Umbel) -> None:
    running = start(app, lease=3600)
    running.stop()
    running.join(SOON)


def test_a_worker_with_every_slot_in_use_stops_fetching(memory: Umbel) -> None:
    runs, go = Signal("the start"), Signal("the end")

    @memory.task
    async def work() -> None:
        runs.set()
        await go.seen()

    running = start(memory, io=1, cpu=0)
    handle = work.delay()
    runs.wait()
    running.stop()
    go.set()
    running.join(SOON)
    assert handle.state is State.SUCCEEDED


def test_a_worker_that_is_stopped_before_it_has_started_stops(memory: Umbel) -> None:
    async def run() -> None:
        worker = memory.worker(WorkerOptions(queues=("default",)))
        worker.stop()
        async with asyncio.timeout(SOON):
            await worker.run()

    before = threading.active_count()
    asyncio.run(run())
    hearts = [thread for thread in threading.enumerate() if thread.name == "umbel-heart"]
    assert not hearts, f"a heart beats on without its worker ({before} threads before)"


def test_a_worker_may_stop_while_another_goes_on(app: Umbel) -> None:
    @app.task
    async def work() -> int:
        return 1

    with working(app, name="stays"):
        leaving = start(app, name="leaves")
        leaving.stop()
        leaving.join(SOON)
        assert workers(app) == ["stays"]
        assert work.delay().get(timeout=DEADLINE) == 1


# --- something runs --------------------------------------------------------------------------


def test_an_interruptible_task_goes_back_to_its_queue_at_once(app: Umbel) -> None:
    heard, runs, stopped = Heard(app), Signal("the start"), Signal("its own cleanup")

    @app.task(interruptible=True, retry=0)
    async def work() -> None:
        runs.set()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    running = start(app, grace=3600)
    handle = work.delay()
    runs.wait()
    running.stop()
    running.join(SOON)
    record = handle.record()
    assert (record.state, record.attempt, record.deaths) == (State.QUEUED, 1, 0)
    assert ended(record) == ["interrupted"]
    assert stopped
    heard.wait(events.JobInterrupted, job=handle.id)


def test_an_interruptible_thread_goes_back_to_its_queue_at_once(app: Umbel) -> None:
    runs = Signal("the start")

    @app.task(interruptible=True, retry=0)
    def work() -> None:
        runs.set()
        while True:
            time.sleep(0.001)

    running = start(app, grace=3600)
    handle = work.delay()
    runs.wait()
    running.stop()
    running.join(SOON)
    record = handle.record()
    assert (record.state, record.attempt, record.deaths) == (State.QUEUED, 1, 0)


def test_an_interrupted_job_is_run_by_the_next_worker_as_the_same_attempt(app: Umbel) -> None:
    from umbel import current

    runs, second = Signal("the start"), Signal("the second worker")

    @app.task(interruptible=True, retry=0)
    async def work() -> list[int]:
        runs.set()
        if not second:
            await asyncio.sleep(3600)
        return [current.job.attempt, current.job.deaths]

    running = start(app)
    handle = work.delay()
    runs.wait()
    running.stop()
    running.join(SOON)
    second.set()
    with working(app):
        assert handle.get(timeout=DEADLINE) == [1, 0]
    assert ended(handle.record()) == ["interrupted", "succeeded"]


@pytest.mark.parametrize("kind", ["io", "cpu"])
def test_a_task_that_must_not_be_interrupted_finishes_within_the_grace_period(
    app: Umbel, kind: str
) -> None:
    heard, runs, go = Heard(app), Signal("the start"), Signal("the end")

    @app.task
    async def coroutine() -> str:
        runs.set()
        await go.seen()
        return "whole"

    @app.task
    def thread() -> str:
        runs.set()
        go.wait()
        return "whole"

    running = start(app, grace=3600)
    handle = (coroutine if kind == "io" else thread).delay()
    runs.wait()
    running.stop()
    assert heard.wait(events.WorkerStopping).running == 1
    assert handle.state is State.RUNNING
    go.set()
    running.join(SOON)
    assert handle.get(timeout=DEADLINE) == "whole"
    assert workers(app) == []


@pytest.mark.parametrize("kind", ["io", "cpu"])
def test_a_task_that_outlasts_the_grace_period_is_interrupted(app: Umbel, kind: str) -> None:
    runs = Signal("the start")

    @app.task(retry=0)
    async def coroutine() -> None:
        runs.set()
        await asyncio.sleep(3600)

    @app.task(retry=0)
    def thread() -> None:
        runs.set()
        while True:
            time.sleep(0.001)

    running = start(app, grace=0.1)
    handle = (coroutine if kind == "io" else thread).delay()
    runs.wait()
    running.stop()
    running.join(SOON)
    record = handle.record()
    assert (record.state, record.attempt, record.deaths) == (State.QUEUED, 1, 0)
    assert record.attempts[0].reason == "the grace period is over"


def test_a_second_stop_means_now(app: Umbel) -> None:
    heard, runs = Heard(app), Signal("the start")

    @app.task
    async def work() -> None:
        runs.set()
        await asyncio.sleep(3600)

    running = start(app, grace=3600)
    handle = work.delay()
    runs.wait()
    running.stop()
    heard.wait(events.WorkerStopping)
    assert running.alive
    running.stop()
    running.join(SOON)
    assert handle.state is State.QUEUED


def test_a_third_stop_changes_nothing(memory: Umbel) -> None:
    running = start(memory)
    for _ in range(5):
        running.stop()
    running.join(SOON)


def test_heartbeats_go_on_while_a_worker_finishes_its_work(app: Umbel) -> None:
    """Others must not take the job of a worker that is stopping for longer than a lease."""
    heard, runs, go, gauge = Heard(app), Signal("the start"), Signal("the end"), Gauge()

    @app.task
    async def work() -> None:
        with gauge:
            runs.set()
            await go.seen()

    with working(app, name="watcher", io=0, cpu=1, lease=1.5):
        running = start(app, grace=3600, lease=1.5)
        handle = work.delay()
        runs.wait()
        running.stop()
        heard.wait(events.WorkerStopping)

        def beats() -> int:
            rows = ask_backend(app, lambda roles: roles.registry.workers())
            return next(row.heartbeats for row in rows if row.entry.name == "worker")

        first = beats()
        until(lambda: beats() > first + 4, "more than a lease to pass in beats")
        go.set()
        running.join(SOON)
        assert finished(handle).state is State.SUCCEEDED
    assert (gauge.entered, handle.record().deaths) == (1, 0)
    assert not heard.all(events.WorkerLost)


def test_a_stopping_worker_says_so(app: Umbel) -> None:
    runs, go = Signal("the start"), Signal("the end")

    @app.task
    async def work() -> None:
        runs.set()
        await go.seen()

    def state() -> str:
        return ask(app, lambda operations: operations.workers())[0].state

    running = start(app, grace=3600, lease=1.0)
    work.delay()
    runs.wait()
    running.stop()
    until(lambda: state() == "stopping", "the store to know that it stops")
    go.set()
    running.join(SOON)


# --- tasks that do not listen ----------------------------------------------------------------


def test_a_thread_that_ignores_stops_is_abandoned_and_its_job_goes_back(app: Umbel) -> None:
    heard, runs, hold = Heard(app), Signal("the start"), threading.Event()

    @app.task(retry=0)
    def stubborn() -> None:
        runs.set()
        hold.wait()  # inside C code: no exception can be raised here

    running = start(app, grace=0)
    handle = stubborn.delay()
    runs.wait()
    running.stop()
    running.join(SOON)
    record = handle.record()
    assert (record.attempt, record.deaths, ended(record)) == (1, 0, ["interrupted"])
    assert record.state in (State.SCHEDULED, State.QUEUED)
    assert heard.wait(events.WorkerStopped).abandoned == 1
    assert workers(app) == []
    hold.set()


def test_what_an_abandoned_thread_returns_later_is_not_recorded(memory: Umbel) -> None:
    runs, left, hold = Signal("the start"), Signal("its return"), threading.Event()

    @memory.task(retry=0)
    def stubborn() -> str:
        runs.set()
        with suppress(BaseException):  # the stop is heard at last, and ignored
            hold.wait()
        left.set()
        return "too late"

    running = start(memory, grace=0)
    handle = stubborn.delay()
    runs.wait()
    running.stop()
    running.join(SOON)
    hold.set()
    left.wait()
    assert handle.state in (State.SCHEDULED, State.QUEUED)
    with working(memory):
        assert handle.get(timeout=DEADLINE) == "too late"
    assert ended(handle.record()) == ["interrupted", "succeeded"]


def test_a_coroutine_that_swallows_every_stop_does_not_keep_the_worker(memory: Umbel) -> None:
    runs, release = Signal("the start"), Signal("the release")

    @memory.task(retry=0)
    async def stubborn() -> None:
        runs.set()
        while not release:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    running = start(memory, grace=0)
    handle = stubborn.delay()
    runs.wait()
    running.stop()
    try:
        running.join(SOON)
    finally:
        release.set()
        running.join(SOON)
    record = handle.record()
    assert (record.attempt, record.deaths, ended(record)) == (1, 0, ["interrupted"])


def test_a_coroutine_that_finishes_its_work_when_asked_to_stop_has_succeeded(memory: Umbel) -> None:
    runs = Signal("the start")

    @memory.task(interruptible=True)
    async def work() -> str:
        runs.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "what I had"
        return "everything"

    running = start(memory)
    handle = work.delay()
    runs.wait()
    running.stop()
    running.join(SOON)
    assert handle.get(timeout=DEADLINE) == "what I had"


def test_a_cancelled_job_stays_cancelled_though_its_worker_stops_too(memory: Umbel) -> None:
    """The cancellation is stronger than the stop, so the job does not return to its queue."""
    runs, told = Signal("the start"), Signal("the cancellation")

    @memory.task(retry=0)
    def work() -> None:
        try:
            runs.set()
            while True:
                time.sleep(0.001)
        finally:
            told.set()
            while True:  # cleans up for so long that the worker's own stop hits it too
                time.sleep(0.001)

    running = start(memory, grace=0)
    handle = work.delay()
    runs.wait()
    handle.cancel("not wanted")
    told.wait()
    running.stop()
    running.join(SOON)
    assert handle.state is State.CANCELLED


# --- nothing starts, nothing is lost ---------------------------------------------------------


def test_nothing_starts_after_the_stop(app: Umbel) -> None:
    heard, stopping, late, gauge = Heard(app), Signal("the stop"), Signal(), Gauge()

    @app.task
    async def work() -> None:
        with gauge:
            if stopping:
                late.set()

    def note_stop(event: events.Event) -> None:
        if isinstance(event, events.WorkerStopping):
            stopping.set()

    app.telemetry.subscribe(note_stop)
    ended_publishing = threading.Event()

    def publish() -> None:
        while not ended_publishing.is_set():
            app.publish_many([work.s() for _ in range(5)])

    running = start(app, io=2)
    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        until(lambda: gauge.entered > 20, "the stream to flow")
        running.stop()
        running.join(SOON)
    finally:
        ended_publishing.set()
        publisher.join()
    started_by_then = len(heard.all(events.JobStarted))
    assert not late or gauge.entered == started_by_then
    after_stop = [type(event) for event in heard.all(events.Event)]
    at = after_stop.index(events.WorkerStopping)
    assert events.JobStarted not in after_stop[at:]
    [queue] = ask(app, lambda operations: operations.queues())
    assert queue.running == 0


def test_outcomes_not_settled_yet_are_settled_before_it_leaves(app: Umbel) -> None:
    heard, down, runs = Heard(app), Signal("trouble"), Signal("the run")

    async def refuse(call: Callable[[], Awaitable[Any]]) -> Any:
        if down:
            raise Unavailable("the store is away")
        return await call()

    @app.task
    async def work() -> str:
        runs.set()
        return "kept"

    faults = {"settle": refuse}
    options = WorkerOptions(queues=("default",), name="worker")
    running = Running(app, options, with_faults(faults))
    down.set()
    handle = work.delay()
    runs.wait()
    heard.wait(events.Unreachable, service="settler")
    running.stop()
    heard.wait(events.WorkerStopping)
    assert handle.state is State.RUNNING
    del faults["settle"]
    running.join(SOON)
    assert handle.get(timeout=DEADLINE) == "kept"
    assert workers(app) == []


def test_a_worker_stops_though_the_store_never_comes_back(memory: Umbel) -> None:
    async def refuse(call: Callable[[], Awaitable[Any]]) -> Any:
        raise Unavailable("the store is away")

    @memory.task
    async def work() -> int:
        return 1

    heard = Heard(memory)
    options = WorkerOptions(queues=("default",), name="worker", lease=1.0)
    faults = {"settle": refuse, "unregister": refuse}
    running = Running(memory, options, with_faults(faults))
    handle = work.delay()
    heard.wait(events.Unreachable, service="settler")
    running.stop()
    running.join(SOON)
    assert handle.state is State.RUNNING, "another worker will find it"
    with working(memory, lease=1.0):
        assert handle.get(timeout=DEADLINE) == 1


def test_a_worker_stops_though_its_fetch_hangs(memory: Umbel) -> None:
    hung, release = Signal("the fetch"), Signal("the release")

    async def hang(call: Callable[[], Awaitable[Any]]) -> Any:
        hung.set()
        await release.seen()
        return []

    options = WorkerOptions(queues=("default",), name="worker", lease=1.0, grace=0.1)
    running = Running(memory, options, with_faults({"fetch": hang}))
    hung.wait()
    running.stop()
    running.stop()
    try:
        running.join(SOON)
    finally:
        release.set()
        running.join(SOON)


def test_a_worker_that_unregistered_is_not_registered_again_by_a_heartbeat(memory: Umbel) -> None:
    """The answer to ``unregister`` is late. Meanwhile, the heartbeat finds that the row is gone."""
    heard, beats = Heard(memory), Gauge()

    async def count(call: Callable[[], Awaitable[Any]]) -> Any:
        with beats:
            return await call()

    async def answer_late(call: Callable[[], Awaitable[Any]]) -> Any:
        await call()
        enough = beats.entered + 4
        deadline = time.monotonic() + 5
        while beats.entered < enough and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    options = WorkerOptions(queues=("default",), name="worker", lease=1.5)
    running = Running(memory, options, with_faults({"heartbeat": count, "unregister": answer_late}))
    running.stop()
    running.join(SOON)
    assert workers(memory) == []
    assert not heard.all(events.LeasesLost)


def test_a_heartbeat_that_is_stopped_at_once_stops(
    memory: Umbel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_requested, new_event_loop = threading.Event(), asyncio.events.new_event_loop

    def new_event_loop_late() -> asyncio.AbstractEventLoop:
        assert stop_requested.wait(SOON)
        return new_event_loop()

    async def run() -> bool:
        common: Any = {"clock": memory.clock, "telemetry": memory.telemetry}
        router = Router(
            memory.backend.open(), queues=["default"], duplicates=DuplicateFilter(0), **common
        )
        worker = memory.worker(WorkerOptions(queues=("default",)))
        await router.register(worker.entry())
        incarnation = Incarnation("worker")
        incarnation.id = worker.incarnation
        heartbeat = Heartbeat(
            incarnation,
            worker,
            lease=10.0,
            stall=60.0,
            open_intake=lambda: router,
            open_upkeep=lambda every: [],
            **common,
        )
        monkeypatch.setattr(asyncio.events, "new_event_loop", new_event_loop_late)
        heartbeat.start()
        stopping = asyncio.create_task(heartbeat.stop())
        await asyncio.sleep(0)
        stop_requested.set()
        await stopping
        await router.close()
        return heartbeat.alive

    assert not asyncio.run(run()), "it was stopped before its loop ran"


def test_retries_that_wait_are_untouched_by_a_stop(memory: Umbel) -> None:
    heard = Heard(memory)

    @memory.task(retry=Retry(3, first=3600))
    async def work() -> None:
        raise OSError("no")

    running = start(memory)
    handle = work.delay()
    heard.wait(events.JobRetried)
    running.stop()
    running.join(SOON)
    record = handle.record()
    assert (record.state, record.attempt) == (State.SCHEDULED, 2)


def test_many_workers_started_and_stopped_in_turn_lose_nothing(app: Umbel) -> None:
    gauge = Gauge()

    @app.task
    async def work(n: int) -> int:
        with gauge:
            await asyncio.sleep(0.001)
            return n

    handles = app.publish_many([work.s(n) for n in range(150)])
    for turn in range(3):
        running = start(app, io=4, name=f"worker-{turn}")
        until(lambda turn=turn: gauge.entered > 10 * (turn + 1), "some work to be done")
        running.stop()
        running.join(SOON)
        assert workers(app) == []
    with working(app):
        assert [handle.get(timeout=DEADLINE) for handle in handles] == list(range(150))
    assert gauge.entered == 150, "a stop in good order repeats nothing"
