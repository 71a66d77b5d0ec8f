"""A running worker: what it runs, how much at once, in which order, and what it records."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from running import (
    DEADLINE,
    Gauge,
    Heard,
    Places,
    Signal,
    ask,
    ended,
    finished,
    in_state,
    until,
    working,
)

from umbel import Retry, Snooze, State, Umbel, Unique, current, optional, poisonous, retry
from umbel.backends import Demand, WorkerEntry
from umbel.errors import DuplicateJob, JobCancelled, JobExpired, UnknownJob
from umbel.messages import Delivery, fresh_id
from umbel.telemetry import events

AT_ONCE = Retry(3, first=0, jitter=0)


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    places = Places()
    yield places
    places.close()


@pytest.fixture(params=["memory", "file", "postgres"])
def app(request: pytest.FixtureRequest, places: Places, tmp_path: Path) -> Iterator[Umbel]:
    with places.app(request.param, tmp_path) as app:
        yield app


@pytest.fixture
def memory(places: Places, tmp_path: Path) -> Iterator[Umbel]:
    """The application of tests that do not depend on the store."""
    with places.app("memory", tmp_path) as app:
        yield app


# --- running ---------------------------------------------------------------------------------


def test_coroutines_and_threads_run_side_by_side(app: Umbel) -> None:
    thread_runs, coroutine_runs = Signal("the thread"), Signal("the coroutine")

    @app.task
    async def coroutine(n: int) -> int:
        coroutine_runs.set()
        await thread_runs.seen()
        return n + 1

    @app.task
    def thread(n: int) -> int:
        thread_runs.set()
        coroutine_runs.wait()
        return n + 2

    with working(app):
        handles = [coroutine.delay(1), thread.delay(1)]
        assert [handle.get(timeout=DEADLINE) for handle in handles] == [2, 3]


def test_a_job_published_before_the_worker_started_is_run(app: Umbel) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    handle = add.delay(1, 2)
    assert handle.state is State.QUEUED
    with working(app):
        assert handle.get(timeout=DEADLINE) == 3


def test_a_hundred_jobs_run_once_each(app: Umbel) -> None:
    ran: list[int] = []

    @app.task
    async def note(n: int) -> int:
        ran.append(n)
        return n

    @app.task
    def note_in_thread(n: int) -> int:
        ran.append(n)
        return n

    calls = [(note if n % 2 else note_in_thread).s(n) for n in range(100)]
    with working(app):
        handles = app.publish_many(calls)
        assert [handle.get(timeout=DEADLINE) for handle in handles] == list(range(100))
    assert sorted(ran) == list(range(100))


def test_a_task_sees_its_own_job_and_lease(app: Umbel) -> None:
    @app.task(queue="mail", priority=5)
    async def look() -> list[Any]:
        job, lease = current.job, current.lease
        return [job.id, job.task, job.queue, job.priority, job.attempt, lease.job, lease.fence]

    with working(app) as running:
        handle = look.delay()
        seen = handle.get(timeout=DEADLINE)
        record = handle.record()
        assert seen == [handle.id, look.name, "mail", 5, 1, handle.id, 1]
        assert (record.worker, record.kind) == ("worker", "io")
        assert running.worker.incarnation


def test_a_task_may_publish_another(app: Umbel) -> None:
    @app.task
    def inner(n: int) -> int:
        return n * 2

    @app.task
    async def outer(n: int) -> str:
        return (await inner.adelay(n)).id

    @app.task
    def outer_in_thread(n: int) -> str:
        return inner.delay(n).id

    with working(app):
        for task in (outer, outer_in_thread):
            job = task.delay(4).get(timeout=DEADLINE)
            assert app.handle(job).get(timeout=DEADLINE) == 8


def test_a_trace_goes_on_from_a_task_to_what_it_publishes(memory: Umbel) -> None:
    @memory.task
    def inner() -> None: ...

    @memory.task
    def outer() -> str:
        return inner.delay().id

    with working(memory):
        handle = outer.delay()
        inside = memory.handle(handle.get(timeout=DEADLINE)).record()
    assert inside.traceparent is not None
    assert inside.traceparent.split("-")[1] == str(handle.record().traceparent).split("-")[1]


def test_context_variables_do_not_leak_from_one_job_to_the_next(memory: Umbel) -> None:
    colour: ContextVar[str] = ContextVar("colour", default="none")

    @memory.task
    async def paint(value: str) -> str:
        before = colour.get()
        colour.set(value)
        return before

    @memory.task
    def paint_in_thread(value: str) -> str:
        before = colour.get()
        colour.set(value)
        return before

    with working(memory, cpu=1):
        for task in (paint, paint_in_thread):
            assert [task.delay("red").get(timeout=DEADLINE) for _ in range(5)] == ["none"] * 5


def test_current_is_not_available_outside_a_task(memory: Umbel) -> None:
    from umbel.errors import UmbelError

    with pytest.raises(UmbelError, match="no job runs here"):
        _ = current.job


# --- how much at once ------------------------------------------------------------------------


def test_never_more_coroutines_than_their_budget(app: Umbel) -> None:
    gauge, full = Gauge(), Signal("the budget to be used")

    @app.task
    async def work() -> None:
        with gauge:
            if gauge.now == 3:
                full.set()
            await full.seen()

    with working(app, io=3):
        for handle in app.publish_many([work.s() for _ in range(20)]):
            handle.get(timeout=DEADLINE)
    assert (gauge.most, gauge.entered) == (3, 20)


def test_never_more_threads_than_their_budget(app: Umbel) -> None:
    gauge, full = Gauge(), Signal("the budget to be used")

    @app.task
    def work() -> None:
        with gauge:
            if gauge.now == 3:
                full.set()
            full.wait()

    with working(app, cpu=3):
        for handle in app.publish_many([work.s() for _ in range(20)]):
            handle.get(timeout=DEADLINE)
    assert (gauge.most, gauge.entered) == (3, 20)


@pytest.mark.parametrize("full", ["io", "cpu"])
def test_a_full_budget_does_not_starve_the_other_in_the_same_queue(app: Umbel, full: str) -> None:
    go, gauge = Signal("the end"), Gauge()

    @app.task
    async def coroutine() -> str:
        with gauge:
            await go.seen()
        return "io"

    @app.task
    def thread() -> str:
        with gauge:
            go.wait()
        return "cpu"

    @app.task
    async def quick_coroutine() -> str:
        return "quick"

    @app.task
    def quick_thread() -> str:
        return "quick"

    slow, quick = (coroutine, quick_thread) if full == "io" else (thread, quick_coroutine)
    with working(app, io=2, cpu=2):
        blocking = app.publish_many([slow.s() for _ in range(6)])
        until(lambda: gauge.now == 2, "the budget to be full")
        others = app.publish_many([quick.s() for _ in range(6)])
        assert [handle.get(timeout=DEADLINE) for handle in others] == ["quick"] * 6
        go.set()
        assert [handle.get(timeout=DEADLINE) for handle in blocking] == [full] * 6


def test_a_worker_holds_only_what_it_can_start(app: Umbel) -> None:
    go, gauge = Signal("the end"), Gauge()

    @app.task
    def sleep() -> None:
        with gauge:
            go.wait()

    with working(app, cpu=2):
        handles = app.publish_many([sleep.s() for _ in range(10)])
        until(lambda: gauge.now == 2, "two to run")
        assert (in_state(handles, State.RUNNING), in_state(handles, State.QUEUED)) == (2, 8)
        [queue] = ask(app, lambda operations: operations.queues())
        assert (queue.running, queue.queued) == (2, 8)
        go.set()
        for handle in handles:
            handle.get(timeout=DEADLINE)


def test_a_slot_that_falls_free_is_used_at_once(app: Umbel) -> None:
    @app.task
    def step(n: int) -> int:
        return n

    with working(app, cpu=1, lease=3600):  # a fetch waits 20 minutes: only a wake-up helps
        for handle in app.publish_many([step.s(n) for n in range(10)]):
            handle.get(timeout=DEADLINE)


def test_a_worker_without_threads_leaves_def_tasks_to_others(app: Umbel) -> None:
    @app.task
    async def coroutine() -> int:
        return 1

    @app.task
    def thread() -> int:
        return 2

    with working(app, cpu=0):
        waiting = thread.delay()
        assert coroutine.delay().get(timeout=DEADLINE) == 1
        assert waiting.state is State.QUEUED
    with working(app, io=0):
        assert waiting.get(timeout=DEADLINE) == 2


def test_a_worker_serves_its_own_queues_only(app: Umbel) -> None:
    @app.task(queue="mail")
    async def mail() -> None: ...

    @app.task
    async def other() -> None: ...

    with working(app, queues=("mail",)):
        left = other.delay()
        mail.delay().get(timeout=DEADLINE)
        assert left.state is State.QUEUED


@pytest.mark.parametrize("name", ["a'b", 'a"b', "a;drop table job", "ü ñ 漢", "a:b%s{}\\"])
def test_a_queue_may_have_any_name(app: Umbel, name: str) -> None:
    @app.task(queue=name)
    async def work() -> str:
        return current.job.queue

    with working(app):
        assert work.delay().get(timeout=DEADLINE) == name


def test_two_idle_workers_take_one_job_each(app: Umbel) -> None:
    both = threading.Barrier(2)

    @app.task
    def meet() -> None:
        both.wait(60)

    with working(app, name="one", cpu=1), working(app, name="two", cpu=1):
        handles = [meet.delay(), meet.delay()]
        for handle in handles:
            handle.get(timeout=DEADLINE)
        assert {handle.record().worker for handle in handles} == {"one", "two"}


def test_two_workers_of_one_name_both_work_and_are_warned(app: Umbel) -> None:
    heard, both = Heard(app), threading.Barrier(2)

    @app.task
    def meet() -> None:
        both.wait(60)

    with working(app, name="twin", cpu=1) as one, working(app, name="twin", cpu=1) as two:
        assert heard.wait(events.WorkerNameShared).worker == "twin"
        assert one.worker.incarnation != two.worker.incarnation
        for handle in [meet.delay(), meet.delay()]:
            handle.get(timeout=DEADLINE)
        assert len(ask(app, lambda operations: operations.workers())) == 2


# --- order, delay, expiry --------------------------------------------------------------------


def test_higher_priorities_run_first_and_equals_in_order(app: Umbel) -> None:
    order: list[str] = []

    @app.task
    def note(name: str) -> None:
        order.append(name)

    calls = [("low", -5), ("first", 0), ("second", 0), ("high", 9), ("highest", 32767)]
    handles = [note.options(priority=p).delay(name) for name, p in calls]
    with working(app, cpu=1):
        for handle in handles:
            handle.get(timeout=DEADLINE)
    assert order == ["highest", "high", "first", "second", "low"]


def test_a_delayed_job_stays_in_the_store_and_starts_when_it_is_due(app: Umbel) -> None:
    @app.task
    async def work() -> float:
        return time.time()

    with working(app):
        handle = work.options(delay=0.5).delay()
        far = work.options(delay=3600).delay()
        due = handle.record().not_before
        assert due is not None
        assert handle.get(timeout=DEADLINE) >= due - 0.05, "it ran before its time"
        assert far.state is State.SCHEDULED
        [queue] = ask(app, lambda operations: operations.queues())
        assert (queue.scheduled, queue.running) == (1, 0)


def test_a_moment_may_be_given_instead_of_a_delay(app: Umbel) -> None:
    @app.task
    async def work() -> None: ...

    soon = datetime.now(UTC) + timedelta(seconds=0.3)
    with working(app):
        handle = work.options(not_before=soon).delay()
        handle.get(timeout=DEADLINE)
        started = handle.record().started
        assert started is not None
        assert started >= soon.timestamp() - 0.05


def test_delayed_jobs_run_in_the_order_they_fall_due(memory: Umbel) -> None:
    order: list[int] = []

    @memory.task
    def note(n: int) -> None:
        order.append(n)

    with working(memory, cpu=1):
        handles = [note.options(delay=0.2 * n).delay(n) for n in (3, 1, 2)]
        for handle in handles:
            handle.get(timeout=DEADLINE)
    assert order == [1, 2, 3]


def test_an_expired_job_is_not_started(app: Umbel) -> None:
    heard, ran = Heard(app), Signal()

    @app.task
    async def work() -> None:
        ran.set()

    handle = work.options(expires=0.01).delay()
    until(lambda: time.time() > (handle.record().expires or 0), "the expiry to pass")
    with working(app):
        with pytest.raises(JobExpired):
            handle.get(timeout=DEADLINE)
        until(
            lambda: heard.all(events.JobExpired, job=handle.id) or heard.all(events.JobsExpired),
            "the worker that took it, or the sweep of the store, to report it",
        )
    assert not ran


def test_an_expiry_in_the_future_changes_nothing(memory: Umbel) -> None:
    @memory.task(expires=3600)
    async def work() -> int:
        return 1

    with working(memory):
        assert work.delay().get(timeout=DEADLINE) == 1


# --- failing and trying again ----------------------------------------------------------------


def test_a_failed_attempt_is_repeated_and_each_is_recorded(app: Umbel) -> None:
    heard = Heard(app)

    @app.task(retry=Retry(5, first=0.02, factor=2, jitter=0))
    async def third_time_lucky() -> int:
        if current.job.attempt < 3:
            raise OSError(f"attempt {current.job.attempt}")
        return current.job.attempt

    with working(app):
        handle = third_time_lucky.delay()
        assert handle.get(timeout=DEADLINE) == 3
    record = handle.record()
    assert ended(record) == ["retry", "retry", "succeeded"]
    assert [attempt.number for attempt in record.attempts] == [1, 2, 3]
    assert [attempt.delay for attempt in record.attempts] == [0.02, 0.04, None]
    failure = record.attempts[1].failure
    assert failure is not None
    assert (failure.type, failure.message) == ("builtins:OSError", "attempt 2")
    assert [told.delay for told in heard.all(events.JobRetried)] == [0.02, 0.04]


@pytest.mark.parametrize("kind", ["io", "cpu"])
def test_a_job_that_fails_for_good_is_buried_with_payload_and_traceback(
    app: Umbel, kind: str
) -> None:
    heard = Heard(app)

    @app.task(retry=Retry(2, first=0))
    async def coroutine(n: int) -> None:
        raise ValueError(f"no such colour: {n}")

    @app.task(retry=Retry(2, first=0))
    def thread(n: int) -> None:
        raise ValueError(f"no such colour: {n}")

    task = coroutine if kind == "io" else thread
    with working(app):
        handle = task.delay(7)
        with pytest.raises(ValueError, match="no such colour: 7") as raised:
            handle.get(timeout=DEADLINE)
        heard.wait(events.JobBuried, job=handle.id)
    record = handle.record()
    assert record.state is State.BURIED
    assert ended(record) == ["retry", "retry", "failed"]
    assert app.codec.decode(record.body)["args"] == [7]
    assert record.failure is not None
    assert "raise ValueError" in record.failure.traceback
    assert "umbel/worker" not in record.failure.traceback
    assert "raise ValueError" in str(raised.value.__cause__)


def test_only_the_errors_a_policy_names_are_tried_again(memory: Umbel) -> None:
    @memory.task(retry=Retry(3, first=0, on=OSError, never=FileNotFoundError))
    async def fail(what: str) -> None:
        raise {"os": OSError, "value": ValueError, "file": FileNotFoundError}[what]("no")

    with working(memory):
        handles = {what: fail.delay(what) for what in ("os", "value", "file")}
        stories = {what: ended(finished(handle)) for what, handle in handles.items()}
    assert stories == {
        "os": ["retry", "retry", "retry", "failed"],
        "value": ["failed"],
        "file": ["failed"],
    }


def test_a_call_may_bring_its_own_retry_policy(app: Umbel) -> None:
    @app.task(retry=Retry(9, first=3600))
    async def fail() -> None:
        raise OSError("no")

    with working(app):
        once = fail.options(retry=Retry(1, first=0)).delay()
        never = fail.options(retry=0).delay()
        assert ended(finished(once)) == ["retry", "failed"]
        assert ended(finished(never)) == ["failed"]


def test_a_job_waits_for_its_next_try_in_the_store(app: Umbel) -> None:
    heard = Heard(app)

    @app.task(retry=Retry(1, first=3600))
    async def fail() -> None:
        raise OSError("no")

    with working(app):
        handle = fail.delay()
        heard.wait(events.JobRetried, job=handle.id)
        record = handle.record()
        assert (record.state, record.attempt) == (State.SCHEDULED, 2)


def test_a_snooze_costs_no_attempt(app: Umbel) -> None:
    runs: list[int] = []

    @app.task(retry=Retry(0))
    async def not_yet() -> int:
        runs.append(current.job.attempt)
        if len(runs) < 4:
            raise Snooze(0.01)
        return len(runs)

    with working(app):
        handle = not_yet.delay()
        assert handle.get(timeout=DEADLINE) == 4
    assert runs == [1, 1, 1, 1]
    assert ended(handle.record()) == ["snoozed", "snoozed", "snoozed", "succeeded"]


def test_a_snooze_of_nothing_runs_again_at_once(memory: Umbel) -> None:
    runs: list[int] = []

    @memory.task
    def not_yet() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise Snooze(0)

    with working(memory):
        not_yet.delay().get(timeout=DEADLINE)
    assert len(runs) == 3


@pytest.mark.parametrize("kind", ["io", "cpu"])
def test_a_retry_section_has_its_own_counter(app: Umbel, kind: str) -> None:
    runs: list[int] = []

    def body() -> None:
        runs.append(current.job.attempt)
        with retry(2, name="mail 'server'\".$[0]", first=0):
            if len(runs) < 3:
                raise OSError("section")
        raise ValueError("task")

    @app.task(retry=Retry(1, first=0))
    async def coroutine() -> None:
        body()

    @app.task(retry=Retry(1, first=0))
    def thread() -> None:
        body()

    with working(app):
        record = finished((coroutine if kind == "io" else thread).delay())
    assert runs == [1, 1, 1, 2], "the section's failures must not cost the task's attempts"
    assert ended(record) == ["retry", "retry", "retry", "failed"]


def test_a_retry_section_that_keeps_failing_buries_the_job(app: Umbel) -> None:
    @app.task(retry=Retry(50, first=0))
    async def work() -> None:
        with retry(2, name="mail", first=0):
            raise OSError("down")

    with working(app):
        record = finished(work.delay())
    assert (record.state, ended(record)) == (State.BURIED, ["retry", "retry", "failed"])


def test_a_failure_in_a_poisonous_section_is_final(memory: Umbel) -> None:
    @memory.task(retry=Retry(50, first=0))
    def work() -> None:
        with poisonous():
            raise OSError("broken for good")

    with working(memory):
        record = finished(work.delay())
    assert (record.state, ended(record)) == (State.BURIED, ["failed"])


def test_a_failure_in_an_optional_section_is_skipped(memory: Umbel) -> None:
    @memory.task
    async def work() -> str:
        with optional(OSError):
            raise OSError("never mind")
        return "done"

    with working(memory):
        assert work.delay().get(timeout=DEADLINE) == "done"


def test_a_buried_job_can_be_run_again(app: Umbel) -> None:
    mended = Signal("the repair")

    @app.task(retry=0)
    async def work(n: int) -> int:
        if not mended:
            raise OSError("broken")
        return n

    with working(app):
        handle = work.delay(5)
        assert finished(handle).state is State.BURIED
        mended.set()
        assert ask(app, lambda operations: operations.retry([handle.id])) == [handle.id]
        assert handle.get(timeout=DEADLINE) == 5
    assert ended(handle.record()) == ["failed", "succeeded"]


def test_a_cancelled_job_can_be_run_again(app: Umbel) -> None:
    @app.task
    async def work() -> int:
        return 5

    handle = work.delay()
    handle.cancel()
    ask(app, lambda operations: operations.retry([handle.id]))
    with working(app):
        assert handle.get(timeout=DEADLINE) == 5


# --- timeouts --------------------------------------------------------------------------------


def test_a_coroutine_that_takes_too_long_is_stopped(app: Umbel) -> None:
    stopped = Signal("its own cleanup")

    @app.task(timeout=0.1, retry=0)
    async def slow() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    with working(app), pytest.raises(TimeoutError, match=r"0\.1 s"):
        slow.delay().get(timeout=DEADLINE)
    assert stopped


def test_a_thread_that_takes_too_long_is_stopped(app: Umbel) -> None:
    stopped = Signal("its own cleanup")

    @app.task(timeout=0.1, retry=0)
    def slow() -> None:
        try:
            while True:
                time.sleep(0.001)
        finally:
            stopped.set()

    with working(app), pytest.raises(TimeoutError, match=r"0\.1 s"):
        slow.delay().get(timeout=DEADLINE)
    assert stopped


def test_a_timeout_counts_as_an_attempt(memory: Umbel) -> None:
    @memory.task(timeout=0.05, retry=Retry(2, first=0))
    async def slow() -> int:
        if current.job.attempt < 3:
            await asyncio.sleep(3600)
        return current.job.attempt

    with working(memory):
        assert slow.delay().get(timeout=DEADLINE) == 3


def test_a_call_may_bring_its_own_timeout(memory: Umbel) -> None:
    @memory.task(retry=0)
    async def slow() -> None:
        await asyncio.sleep(3600)

    with working(memory), pytest.raises(TimeoutError):
        slow.options(timeout=0.05).delay().get(timeout=DEADLINE)


def test_a_timeout_does_not_hit_the_next_job_of_the_same_thread(memory: Umbel) -> None:
    @memory.task(timeout=0.2, retry=0)
    def work(quick: bool) -> str:
        deadline = time.monotonic() + (0.05 if quick else 3600)
        while time.monotonic() < deadline:
            time.sleep(0.001)
        return "done"

    with working(memory, cpu=1):
        handles = [work.delay(n % 3 != 0) for n in range(9)]
        states = [finished(handle).state for handle in handles]
    assert states == [State.BURIED, State.SUCCEEDED, State.SUCCEEDED] * 3


# --- cancelling ------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [0, 3600], ids=["queued", "scheduled"])
def test_a_job_cancelled_before_it_starts_never_runs(app: Umbel, delay: float) -> None:
    ran = Signal()

    @app.task
    async def work() -> None:
        ran.set()

    @app.task
    async def probe() -> None: ...

    handle = work.options(delay=delay).delay()
    assert handle.cancel("changed my mind")
    with working(app):
        probe.delay().get(timeout=DEADLINE)
        with pytest.raises(JobCancelled, match="changed my mind"):
            handle.get(timeout=DEADLINE)
    assert not ran


def test_a_running_coroutine_is_cancelled(app: Umbel) -> None:
    runs, stopped = Signal("the start"), Signal("its own cleanup")

    @app.task
    async def work() -> None:
        runs.set()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    with working(app, lease=3600):  # a beat is 20 minutes away: only a push helps
        handle = work.delay()
        runs.wait()
        assert handle.cancel("enough")
        with pytest.raises(JobCancelled, match="enough"):
            handle.get(timeout=DEADLINE)
    assert stopped
    assert ended(handle.record()) == ["cancelled"]


def test_a_thread_in_a_tight_loop_is_cancelled(app: Umbel) -> None:
    runs = Signal("the start")

    @app.task
    def work() -> None:
        runs.set()
        n = 0
        while True:
            n += 1

    with working(app):
        handle = work.delay()
        runs.wait()
        assert handle.cancel("enough")
        with pytest.raises(JobCancelled, match="enough"):
            handle.get(timeout=DEADLINE)


def test_a_thread_is_cancelled_at_its_checkpoint(app: Umbel) -> None:
    runs, told = Signal("the start"), Signal("the checkpoint")

    @app.task
    def work() -> None:
        runs.set()
        try:
            while True:
                current.checkpoint()
                time.sleep(0.005)
        except BaseException:
            told.set()
            raise

    with working(app):
        handle = work.delay()
        runs.wait()
        assert handle.cancel()
        with pytest.raises(JobCancelled):
            handle.get(timeout=DEADLINE)
    assert told


def test_except_exception_does_not_keep_a_cancelled_thread_alive(memory: Umbel) -> None:
    runs = Signal("the start")

    @memory.task
    def work() -> None:
        while True:
            try:
                runs.set()
                time.sleep(0.001)
            except Exception:
                pass

    with working(memory):
        handle = work.delay()
        runs.wait()
        handle.cancel()
        assert finished(handle).state is State.CANCELLED


@pytest.mark.parametrize("kind", ["io", "cpu"])
def test_a_cancelled_job_may_clean_up_for_longer_than_a_beat(memory: Umbel, kind: str) -> None:
    runs, cleaned = Signal("the start"), Signal("the cleanup")

    @memory.task
    def thread() -> None:
        try:
            runs.set()
            while True:
                time.sleep(0.001)
        finally:
            until_then = time.monotonic() + 1.5
            while time.monotonic() < until_then:
                time.sleep(0.001)
            cleaned.set()

    @memory.task
    async def coroutine() -> None:
        try:
            runs.set()
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(1.5)
            cleaned.set()

    with working(memory, lease=1.2):  # beats every 0.4 s, each hears of the cancellation anew
        handle = (coroutine if kind == "io" else thread).delay()
        runs.wait()
        handle.cancel()
        assert finished(handle).state is State.CANCELLED
    assert cleaned, "the cleanup itself was stopped"


def test_cancelling_one_of_many_stops_only_that_one(memory: Umbel) -> None:
    go, gauge = Signal("the end"), Gauge()

    @memory.task
    async def work() -> str:
        with gauge:
            await go.seen()
        return "done"

    with working(memory):
        handles = [work.delay() for _ in range(5)]
        until(lambda: gauge.now == 5, "all to run")
        handles[2].cancel()
        assert finished(handles[2]).state is State.CANCELLED
        go.set()
        for n in (0, 1, 3, 4):
            assert handles[n].get(timeout=DEADLINE) == "done"


def test_an_unknown_job_cannot_be_cancelled(memory: Umbel) -> None:
    with pytest.raises(UnknownJob):
        memory.handle(fresh_id()).cancel()


# --- progress --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["io", "cpu"])
def test_progress_is_visible_while_a_job_runs(app: Umbel, kind: str) -> None:
    go = Signal("the end")

    @app.task
    async def coroutine() -> None:
        current.progress(3, of=10)
        await go.seen()

    @app.task
    def thread() -> None:
        current.progress(1)
        current.progress(3, of=10)
        go.wait()

    with working(app):
        handle = (coroutine if kind == "io" else thread).delay()
        until(lambda: handle.record().progress is not None, "the progress to be written")
        assert handle.record().progress == (3.0, 10.0)
        assert handle.state is State.RUNNING
        go.set()
        handle.get(timeout=DEADLINE)


@pytest.mark.parametrize("wrong", ["half", None, [1]])
@pytest.mark.parametrize("field", ["done", "of"])
def test_progress_that_is_no_number_is_the_tasks_own_mistake(
    memory: Umbel, field: str, wrong: Any
) -> None:
    if field == "of" and wrong is None:
        pytest.skip("no end known is fine")
    heard, go = Heard(memory), Signal("the end")

    @memory.task(retry=0)
    async def bad() -> None:
        current.progress(**{"done": 1, "of": 2, field: wrong})

    @memory.task
    async def good() -> None:
        current.progress(3, of=10)
        await go.seen()

    with working(memory):
        handles = [bad.delay(), good.delay()]
        assert finished(handles[0]).state is State.BURIED
        until(lambda: handles[1].record().progress == (3.0, 10.0), "the other's progress")
        go.set()
    assert not heard.all(events.ServiceFailed)
    assert not heard.all(events.Unreachable)


# --- what is recorded ------------------------------------------------------------------------


def test_a_task_that_tracks_its_state_keeps_no_result(app: Umbel) -> None:
    @app.task(track="state")
    async def work() -> int:
        return 5

    with working(app):
        handle = work.delay()
        assert handle.get(timeout=DEADLINE) is None
    record = handle.record()
    assert (record.state, record.result) == (State.SUCCEEDED, None)


def test_a_task_that_tracks_failures_leaves_nothing_when_it_succeeds(app: Umbel) -> None:
    heard = Heard(app)

    @app.task(track="failures", retry=0)
    async def work(ok: bool) -> None:
        if not ok:
            raise OSError("no")

    with working(app):
        good, bad = work.delay(True), work.delay(False)
        heard.wait(events.JobSucceeded, job=good.id)
        assert finished(bad).state is State.BURIED
    with pytest.raises(UnknownJob):
        good.record()


def test_a_call_may_ask_for_other_tracking(memory: Umbel) -> None:
    @memory.task(track="failures")
    async def work() -> int:
        return 5

    with working(memory):
        assert work.options(track="result").delay().get(timeout=DEADLINE) == 5


def test_an_unknown_id_is_an_error_never_pending(memory: Umbel) -> None:
    handle = memory.handle(fresh_id())
    with pytest.raises(UnknownJob):
        _ = handle.state
    with pytest.raises(UnknownJob):
        handle.get(timeout=1)


# --- duplicates ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["io", "cpu", "io with async policy"])
def test_a_dedupe_policy_discards_what_was_done_before(app: Umbel, kind: str) -> None:
    done: set[int] = set()
    ran: list[int] = []

    def known(n: int) -> bool:
        return n in done

    async def known_async(n: int) -> bool:
        return n in done

    def work(n: int) -> None:
        ran.append(n)
        done.add(n)

    if kind == "cpu":
        task: Any = app.task(name="work", dedupe=known)(work)
    else:

        @app.task(name="work", dedupe=known_async if "async" in kind else known)
        async def coroutine(n: int) -> None:
            work(n)

        task = coroutine

    with working(app):
        assert finished(task.delay(1)).state is State.SUCCEEDED
        again = finished(task.delay(1))
        assert (again.state, "duplicate" in again.reason) == (State.CANCELLED, True)
        assert finished(task.delay(2)).state is State.SUCCEEDED
    assert ran == [1, 2]


def test_a_dedupe_policy_that_fails_is_a_failed_attempt(memory: Umbel) -> None:
    def broken() -> bool:
        raise OSError("cannot tell")

    @memory.task(dedupe=broken, retry=0)
    async def work() -> None: ...

    with working(memory):
        record = finished(work.delay())
    assert record.state is State.BURIED
    assert record.failure is not None
    assert record.failure.message == "cannot tell"


def test_a_delivery_that_comes_twice_runs_once(memory: Umbel) -> None:
    """The broker repeats a delivery, as brokers with at-least-once delivery may do."""
    heard, ran = Heard(memory), Gauge()
    repeated: list[Delivery] = []
    opened = memory.backend.open

    def open_stammering(*, is_loop_dedicated: bool = False) -> Any:
        backend = opened(is_loop_dedicated=is_loop_dedicated)
        fetch = backend.broker.fetch

        async def stammer(*where: Any) -> list[Delivery]:
            fresh = await fetch(*where)
            again, repeated[:] = list(repeated), fresh
            return fresh + again

        if not is_loop_dedicated:
            backend.broker.fetch = stammer
        return backend

    memory.backend.open = open_stammering  # type: ignore[method-assign]

    @memory.task
    async def work(n: int) -> int:
        with ran:
            return n

    with working(memory):
        assert work.delay(1).get(timeout=DEADLINE) == 1
        assert work.delay(2).get(timeout=DEADLINE) == 2
        heard.wait(events.DuplicateDiscarded)
        assert work.delay(3).get(timeout=DEADLINE) == 3
    assert ran.entered == 3


def test_a_unique_key_is_free_again_when_its_job_is_done(app: Umbel) -> None:
    go = Signal("the end")

    @app.task(unique="the-one")
    async def work() -> int:
        await go.seen()
        return 1

    with working(app):
        first = work.delay()
        with pytest.raises(DuplicateJob) as raised:
            work.delay()
        assert raised.value.existing == first.id
        until(lambda: first.state is State.RUNNING, "it to run")
        with pytest.raises(DuplicateJob):
            work.delay()
        go.set()
        first.get(timeout=DEADLINE)
        assert work.delay().get(timeout=DEADLINE) == 1


@pytest.mark.parametrize("how", ["buried", "cancelled"])
def test_a_unique_key_is_free_again_however_its_job_ended(app: Umbel, how: str) -> None:
    runs = Signal("the start")

    @app.task(unique=True, retry=0)
    async def work() -> None:
        runs.set()
        if how == "buried":
            raise OSError("no")
        await asyncio.sleep(3600)

    with working(app):
        handle = work.delay()
        runs.wait()
        if how == "cancelled":
            handle.cancel()
        assert finished(handle).state.value == how
        work.delay().cancel()


def test_a_unique_job_between_two_tries_still_holds_its_key(memory: Umbel) -> None:
    heard = Heard(memory)

    @memory.task(unique="key", retry=Retry(1, first=3600))
    async def work() -> None:
        raise OSError("no")

    with working(memory):
        first = work.delay()
        heard.wait(events.JobRetried)
        same = work.options(unique=Unique("key", on_conflict="return")).delay()
        assert same.id == first.id
        new = work.options(unique=Unique("key", on_conflict="replace")).delay()
        assert new.id != first.id
        assert first.state is State.CANCELLED


# --- workers that died -----------------------------------------------------------------------


async def die_with_a_job(app: Umbel, lease: float) -> None:
    """Let a worker claim a job and then send no more heartbeats."""
    backend = app.backend.open()
    entry = WorkerEntry(
        incarnation=fresh_id(),
        name="dead",
        host="elsewhere",
        pid=1,
        queues=("default",),
        capacity={"io": 10, "cpu": 10},
        lease=lease,
    )
    await backend.registry.register(entry)
    claimed = await backend.broker.fetch(
        ("default",), Demand.of(io=10, cpu=10), entry.incarnation, 10
    )
    assert len(claimed) == 1
    await backend.close()


def test_the_job_of_a_worker_that_died_is_run_by_another(app: Umbel) -> None:
    heard = Heard(app)

    @app.task
    async def work() -> list[int]:
        return [current.job.deaths, current.job.attempt, current.lease.fence]

    handle = work.delay()
    asyncio.run(die_with_a_job(app, lease=0.5))
    assert handle.state is State.RUNNING
    with working(app, lease=1.5):
        assert handle.get(timeout=DEADLINE) == [1, 1, 2]
    assert heard.wait(events.WorkerLost).worker == "dead"
    assert ended(handle.record()) == ["lost", "succeeded"]


def test_a_job_that_killed_as_many_workers_as_it_may_is_buried(app: Umbel) -> None:
    @app.task(max_deaths=1)
    async def work() -> None: ...

    handle = work.delay()
    asyncio.run(die_with_a_job(app, lease=0.5))
    with working(app, lease=1.5):
        record = finished(handle)
    assert (record.state, record.deaths, ended(record)) == (State.BURIED, 1, ["lost"])
    assert "dead" in record.reason


# --- the store's own view --------------------------------------------------------------------


def test_a_worker_is_listed_while_it_works(app: Umbel) -> None:
    @app.task(queue="mail")
    async def work() -> None: ...

    with working(app, name="sam", io=7, cpu=3) as running:
        [view] = ask(app, lambda operations: operations.workers())
        assert (view.name, view.io, view.cpu) == ("sam", 7, 3)
        assert view.incarnation == running.worker.incarnation
        assert set(view.queues) == {"default", "mail"}
        assert view.state == "working"


def test_health_is_good_while_a_worker_serves_every_queue(app: Umbel) -> None:
    @app.task
    async def work() -> None: ...

    work.delay()
    assert not ask(app, lambda operations: operations.health()).ok
    with working(app):
        until(lambda: ask(app, lambda operations: operations.health()).ok, "good health")
