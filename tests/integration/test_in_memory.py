"""``umbel.testing``: an application in a test, on a database in memory, without a worker."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from datetime import datetime
from unittest.mock import ANY
from uuid import UUID

import anyio
import pytest

from umbel import Retry, Snooze, State, Umbel, Unique, current, poisonous, step
from umbel.backends.sqlite.step_connections import StepConnection
from umbel.errors import (
    BadArguments,
    ConfigurationError,
    JobFailed,
    NotEncodable,
    ResultTimeout,
    UmbelError,
    Unavailable,
    UnknownJob,
)
from umbel.testing import InMemoryJobs, eager, in_memory

app = Umbel("postgresql://no-such-host.invalid/shop", keys="no-such-file.json")
pool = app.pool("printers", ["first"])
calls: list[object] = []
of_caller: ContextVar[str] = ContextVar("of_caller", default="")


@app.task
def charge(order: int, note: str = "") -> str:
    with poisonous():
        if order < 1:
            raise ValueError(f"order {order} must be at least 1")
    return f"order {order} paid"


@app.task(retry=Retry(3, first=60))
def flaky() -> int:
    calls.append(current.job.attempt)
    if current.job.attempt < 3:
        raise ConnectionError("down")
    return current.job.attempt


@app.task
def double(number: int) -> int:
    current.progress(1, of=2)
    calls.append(threading.current_thread())
    return 2 * number


@app.task
async def wait_for_double(number: int) -> int:
    calls.append(asyncio.get_running_loop())
    return 1 + await (await double.adelay(number))


@app.task
def block_for_double(number: int) -> int:
    return 1 + double.delay(number).get()


@app.task(retry=Retry(2, first=60))
def in_steps(fails: bool) -> list[int]:
    found = [step(double, 4), step(double, 5)]
    if fails and current.job.attempt == 1:
        raise ConnectionError
    return found


@app.task
async def in_async_steps() -> int:
    return await step.threaded(double, 6)


@app.task(publishing="held")
def publish_and_fail(fails: bool) -> None:
    double.delay(9)
    if fails:
        with poisonous():
            raise ValueError("afterwards")


@app.task
def identify(known: UUID, when: datetime, tags: tuple[str, ...]) -> list[object]:
    return [known.hex, when.year, tags]


@pytest.fixture
def jobs() -> Iterator[InMemoryJobs]:
    calls.clear()
    with in_memory(app) as jobs:
        yield jobs


def drain(jobs: InMemoryJobs) -> list[tuple[str, State]]:
    return [(job.task.rpartition(".")[2], job.state) for job in jobs.drain(errors="collect")]


# --- the database ----------------------------------------------------------------------------


def test_the_application_uses_a_database_in_memory_and_then_its_own_again() -> None:
    before = app.settings, app.backend, app.clock
    with in_memory(app):
        handle = charge.delay(1)
        assert handle.state is State.QUEUED
        assert app.settings.broker == "sqlite:///:memory:"
        assert app.handle(handle.id).get() == "order 1 paid"
    assert (app.settings, app.backend, app.clock) == before


def test_two_tests_do_not_see_the_jobs_of_each_other() -> None:
    with in_memory(app) as first:
        handle = charge.delay(1)
        assert len(first.published) == 1
    with in_memory(app) as second:
        assert (second.published, second.drain()) == ([], [])
        with pytest.raises(UnknownJob):
            handle.get(timeout=1)


def test_a_block_inside_another_has_its_own_jobs(jobs: InMemoryJobs) -> None:
    outer = charge.delay(1)
    with in_memory(app) as inner:
        assert in_steps.delay(False).get() == [8, 10]
        assert len(inner.published) == 1
    assert in_steps.delay(False).get() == [8, 10]
    assert outer.get() == "order 1 paid"
    assert len(jobs.published) == 2


def test_a_call_with_options_that_was_made_before_is_redirected_too() -> None:
    later = charge.options(delay=30)
    with in_memory(app) as jobs:
        assert later.delay(1).state is State.SCHEDULED
        jobs.assert_published(later, 1)


def test_the_application_may_be_closed_during_a_test(jobs: InMemoryJobs) -> None:
    handle = in_steps.delay(False)
    assert handle.get() == [8, 10]
    app.close()
    assert handle.get() == [8, 10]
    assert in_steps.delay(False).get() == [8, 10]


def test_the_database_is_closed_after_the_test() -> None:
    with in_memory(app) as jobs:
        charge.delay(1)
        jobs.drain()
        roles = app.backend.open(is_loop_dedicated=True)
    with pytest.raises(Unavailable, match="closed database"):
        asyncio.run(roles.broker.depths())


def test_nothing_is_left_of_a_test() -> None:
    def count_left() -> tuple[int, int]:
        gc.collect()
        connections = sum(type(one) is StepConnection for one in gc.get_objects())
        return threading.active_count(), connections

    def use() -> None:
        with in_memory(app) as jobs:
            wait_for_double.delay(1)
            jobs.drain()

    use()
    before = count_left()
    for _ in range(5):
        use()
    assert count_left() == before


# --- drain -----------------------------------------------------------------------------------


def test_drain_runs_what_is_queued_and_returns_what_has_ended(jobs: InMemoryJobs) -> None:
    handle = charge.delay(7)
    found = jobs.drain()
    assert [(one.id, one.task, one.state) for one in found] == [
        (handle.id, charge.name, State.SUCCEEDED)
    ]
    assert found[0].result == handle.get() == "order 7 paid"
    assert jobs.drain() == []


def test_drain_runs_def_tasks_in_the_thread_of_the_test(jobs: InMemoryJobs) -> None:
    double.delay(1)
    jobs.drain()
    assert calls == [threading.current_thread()]


def test_drain_runs_all_coroutines_in_one_event_loop(jobs: InMemoryJobs) -> None:
    for number in range(3):
        wait_for_double.delay(number)
    jobs.drain()
    loops = [one for one in calls if isinstance(one, asyncio.AbstractEventLoop)]
    assert len(loops) == 3
    assert len(set(loops)) == 1


def test_drain_raises_the_exception_of_the_task_after_all_jobs_have_run(jobs: InMemoryJobs) -> None:
    first, second, third = charge.delay(0), charge.delay(-1), charge.delay(1)
    with pytest.raises(ValueError, match="order 0") as caught:
        jobs.drain()
    assert caught.traceback[-1].name == "charge", "the test shows the line of the task"
    assert second.id in caught.value.__notes__[0]
    assert [one.state for one in (first, second, third)] == ["buried", "buried", "succeeded"]


def test_drain_collects_errors_on_request(jobs: InMemoryJobs) -> None:
    charge.delay(0)
    [job] = jobs.drain(errors="collect")
    assert job.state is State.BURIED
    assert isinstance(job.error, ValueError)
    with pytest.raises(ConfigurationError, match='"raise" or "collect"'):
        jobs.drain(errors="ignore")  # type: ignore[arg-type]


def test_an_error_that_is_caught_from_a_handle_is_not_raised_again(jobs: InMemoryJobs) -> None:
    @app.task(name="test_in_memory.forgiving")
    def forgiving() -> str:
        try:
            return charge.delay(0).get()
        except ValueError:
            return "free"

    handle = forgiving.delay()
    jobs.drain()
    assert handle.get() == "free"


def test_a_job_whose_message_cannot_run_raises_its_reason(jobs: InMemoryJobs) -> None:
    event = {
        "specversion": "1.0",
        "id": "0192f0c1-2345-7890-abcd-ef0123456789",
        "source": "elsewhere",
        "type": "umbel.command",
        "subject": "no.such.task",
        "data": {"args": [], "kwargs": {}},
    }
    app.publish_event(json.dumps(event).encode())
    assert [call.task for call in jobs.published] == ["no.such.task"]
    with pytest.raises(JobFailed, match=r"no\.such\.task"):
        jobs.drain()


def test_retries_run_without_waiting_and_count_attempts(jobs: InMemoryJobs) -> None:
    handle = flaky.delay()
    [job] = jobs.drain()
    assert (job.result, job.attempt, calls) == (3, 3, [1, 2, 3])
    first, second, _ = handle.record().attempts
    assert first.ended == "retry"
    assert second.started - first.finished >= first.delay > 0


def test_jobs_with_a_delay_run_in_the_order_of_their_times(jobs: InMemoryJobs) -> None:
    late = charge.options(delay=3600).delay(2)
    soon = charge.options(delay=60).delay(1)
    assert [job.id for job in jobs.drain()] == [soon.id, late.id]
    assert late.record().attempts[0].started - late.record().created >= 3600


def test_within_leaves_jobs_that_are_due_later(jobs: InMemoryJobs) -> None:
    charge.options(delay=60).delay(1)
    charge.options(delay=3600).delay(2)
    assert jobs.drain(within=0) == []
    assert [job.result for job in jobs.drain(within=120)] == ["order 1 paid"]
    jobs.advance(3600)
    assert [job.result for job in jobs.drain(within=0)] == ["order 2 paid"]


def test_moving_the_time_does_not_end_waits_in_progress(jobs: InMemoryJobs) -> None:
    now, monotonic = app.clock.now(), app.clock.monotonic()
    jobs.advance(1e6)
    assert app.clock.now() >= now + 1e6
    assert app.clock.monotonic() < monotonic + 1e5


def test_drain_leaves_no_job_that_becomes_due_while_it_looks(jobs: InMemoryJobs) -> None:
    """The second job of each pair is due shortly after the first one has run."""
    for number in range(200):
        pair = [double.options(delay=10 + later).delay(1) for later in (0, number / 50_000)]
        jobs.drain()
        assert [job.state for job in pair] == [State.SUCCEEDED] * 2


def test_within_must_not_be_negative(jobs: InMemoryJobs) -> None:
    with pytest.raises(ConfigurationError, match="within=-1"):
        jobs.drain(within=-1)
    with pytest.raises(ValueError, match="time only goes forward"):
        jobs.advance(-1)


def test_a_job_expires_if_its_time_passes_first(jobs: InMemoryJobs) -> None:
    charge.options(expires=60).delay(1)
    jobs.advance(61)
    assert drain(jobs) == [("charge", State.EXPIRED)]


def test_a_cancelled_job_does_not_run(jobs: InMemoryJobs) -> None:
    charge.delay(1).cancel()
    assert jobs.drain() == []


def test_a_job_that_another_job_cancels_does_not_run(jobs: InMemoryJobs) -> None:
    """Both are claimed together: a coroutine and a ``def`` task."""

    @app.task(name="test_in_memory.cancel_other")
    async def cancel_other(job: str) -> bool:
        return await app.handle(job).acancel("not needed")

    victim = "0192f0c1-2345-7890-abcd-ef0123456789"
    cancel_other.options(priority=9).delay(victim)
    double.options(id=victim).delay(1)
    assert drain(jobs) == [("cancel_other", State.SUCCEEDED), ("double", State.CANCELLED)]
    assert calls == []


def test_snoozed_jobs_run_again(jobs: InMemoryJobs) -> None:
    @app.task(name="test_in_memory.sleepy")
    def sleepy() -> int:
        calls.append("run")
        if len(calls) < 3:
            raise Snooze(3600)
        return len(calls)

    assert sleepy.delay().get() == 3


def test_a_task_that_publishes_itself_does_not_run_for_ever(jobs: InMemoryJobs) -> None:
    @app.task(name="test_in_memory.endless")
    def endless() -> None:
        endless.options(delay=60).delay()

    endless.delay()
    with pytest.raises(UmbelError, match=r"10 runs.*within=seconds"):
        jobs.drain(max_runs=10)
    assert len(jobs.published) == 11
    assert len(jobs.drain(within=0)) == 1, "the job that was too much has not run"
    assert len(jobs.drain(within=150)) == 2


def test_drain_may_make_as_many_runs_as_it_is_given(jobs: InMemoryJobs) -> None:
    for order in (1, 2):
        charge.delay(order)
    assert len(jobs.drain(max_runs=2)) == 2


def test_rates_are_kept_in_virtual_time(jobs: InMemoryJobs) -> None:
    @app.task(name="test_in_memory.once_a_minute", rate="1/m")
    def once_a_minute() -> float:
        return current.job.claimed

    for _ in range(3):
        once_a_minute.delay()
    assert len(jobs.drain(within=0)) == 1
    assert jobs.drain(within=20) == []
    assert len(jobs.drain()) == 2


def test_a_limit_keeps_a_job_waiting_until_the_other_has_ended(jobs: InMemoryJobs) -> None:
    @app.task(name="test_in_memory.exclusive", limit=1)
    def exclusive(number: int) -> None:
        if number:
            exclusive.delay(number - 1)
        calls.append(number)

    with jobs.eager():
        exclusive.delay(2)
    assert calls == [2, 1, 0]


def test_pools_routes_and_broadcasts_work(jobs: InMemoryJobs) -> None:
    @app.task(name="test_in_memory.pooled", pool=pool)
    def pooled() -> str:
        return current.lease.member

    @app.task(name="test_in_memory.routed", affinity="key")
    def routed(key: str) -> str:
        assert current.route is not None
        return current.route.key

    @app.task(name="test_in_memory.everywhere", broadcast=True)
    def everywhere() -> str:
        return current.worker.name

    assert (pooled.delay().get(), routed.delay("ada").get()) == ("first", "ada")
    assert everywhere.delay().get()["test"].result == "test"  # type: ignore[index]


def test_steps_run_once(jobs: InMemoryJobs) -> None:
    assert in_steps.delay(True).get() == [8, 10]
    assert len(calls) == 2
    assert in_async_steps.delay().get() == 12


def test_a_transaction_step_publishes_when_it_commits(jobs: InMemoryJobs) -> None:
    @app.task(name="test_in_memory.transact")
    def transact() -> None:
        step.transaction(lambda connection: double.delay(1).id)

    with jobs.eager():
        transact.delay()
    jobs.assert_published(double, 1)
    assert len(calls) == 1


def test_held_messages_count_as_published_only_if_the_job_succeeds(jobs: InMemoryJobs) -> None:
    publish_and_fail.delay(True)
    jobs.drain(errors="collect")
    jobs.refute_published(double)
    publish_and_fail.delay(False)
    jobs.drain()
    jobs.assert_published(double, 9)
    assert len(calls) == 1


def test_progress_is_recorded(jobs: InMemoryJobs) -> None:
    handle = double.delay(1)
    handle.get()
    assert handle.record().progress == (1, 2)


def test_a_coroutine_times_out(jobs: InMemoryJobs) -> None:
    @app.task(name="test_in_memory.hangs", timeout=0.01, retry=0)
    async def hangs() -> None:
        await asyncio.Event().wait()

    hangs.delay()
    with pytest.raises(TimeoutError, match=r"0\.01 s"):
        jobs.drain()


def test_tasks_for_trio_run(jobs: InMemoryJobs) -> None:
    trio = pytest.importorskip("trio")

    @app.task(name="test_in_memory.in_trio", loop="trio")
    async def in_trio() -> int:
        await trio.sleep(0)
        return await step.threaded(double, 5)

    assert in_trio.delay().get() == 10


def test_pytest_fail_inside_a_task_fails_the_test(jobs: InMemoryJobs) -> None:
    @app.task(name="test_in_memory.fails")
    def fails() -> None:
        pytest.fail("seen by the test")

    fails.delay()
    with pytest.raises(pytest.fail.Exception, match="seen by the test"):
        jobs.drain(errors="collect")


def test_a_task_sees_context_variables_of_the_test_and_does_not_change_them(
    jobs: InMemoryJobs,
) -> None:
    @app.task(name="test_in_memory.reads_context")
    def reads_context() -> str:
        found = of_caller.get()
        of_caller.set("changed")
        return found

    of_caller.set("test")
    assert reads_context.delay().get() == "test"
    assert of_caller.get() == "test"
    with pytest.raises(UmbelError, match="no job runs here"):
        current.job  # noqa: B018


# --- handles ---------------------------------------------------------------------------------


def test_get_runs_what_is_queued_until_its_job_has_ended(jobs: InMemoryJobs) -> None:
    first, second, third = (charge.delay(order) for order in (1, 2, 3))
    assert second.get() == "order 2 paid"
    assert [one.state for one in (first, second, third)] == ["succeeded", "succeeded", "queued"]


def test_get_leaves_other_jobs_in_their_queues(jobs: InMemoryJobs) -> None:
    """A coroutine and a ``def`` task can be claimed together."""
    limited = app.task(name="test_in_memory.limited", limit=1)(lambda: calls.append("limited"))
    coroutine = in_async_steps.delay()
    others = [double.delay(2), limited.delay(), limited.delay()]
    assert coroutine.get() == 12
    assert [one.state for one in others] == [State.QUEUED, State.WAITING, State.WAITING]
    assert others[0].record().attempts == ()
    assert [job.id for job in jobs.drain()] == [one.id for one in others]


def test_threads_may_publish_and_wait_at_the_same_time(jobs: InMemoryJobs) -> None:
    tasks = (double, block_for_double, wait_for_double)

    def use(number: int) -> int:
        return tasks[number % 3].delay(number).get(timeout=60)

    wanted = [2 * number + (number % 3 > 0) for number in range(60)]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(use, range(60))) == wanted
    with jobs.eager(), ThreadPoolExecutor(6) as threads:
        assert list(threads.map(use, range(60))) == wanted


def test_get_raises_the_error_of_its_own_job_only(jobs: InMemoryJobs) -> None:
    charge.delay(0)
    good = charge.delay(1)
    assert good.get() == "order 1 paid"
    with pytest.raises(ValueError, match="order -1"):
        charge.delay(-1).get()


def test_a_task_may_wait_for_another_job(jobs: InMemoryJobs) -> None:
    assert block_for_double.delay(2).get() == 5
    assert wait_for_double.delay(2).get() == 5
    waiting = wait_for_double.delay(3)
    assert len(jobs.drain()) == 2
    assert waiting.get() == 7


def test_the_timeout_of_get_is_virtual_time(jobs: InMemoryJobs) -> None:
    handle = charge.options(delay=3600).delay(1)
    with pytest.raises(ResultTimeout, match="within 60 s"):
        handle.get(timeout=60)
    assert handle.get(timeout=3600) == "order 1 paid"


def test_get_of_a_job_that_cannot_run_says_why(jobs: InMemoryJobs) -> None:
    async def pause() -> None:
        await app.operations().pause("queue", "default", "closed today")

    asyncio.run(pause())
    handle = charge.delay(1)
    assert jobs.drain() == []
    with pytest.raises(UmbelError, match="cannot run: it is queued"):
        handle.get()


# --- eager -----------------------------------------------------------------------------------


def test_an_eager_call_has_run_when_delay_returns() -> None:
    with eager(app) as jobs:
        handle = charge.delay(1)
        assert handle.state is State.SUCCEEDED
        assert handle.get() == "order 1 paid"
        jobs.assert_published(charge, 1)
    with eager(app):
        assert [one.get() for one in app.publish_many([charge.s(1), charge.s(2)])] == [
            "order 1 paid",
            "order 2 paid",
        ]


def test_calls_after_an_eager_block_stay_in_their_queue(jobs: InMemoryJobs) -> None:
    with jobs.eager():
        charge.delay(1)
    assert charge.delay(2).state is State.QUEUED


def test_current_works_in_an_eager_call() -> None:
    @app.task(name="test_in_memory.inspect_current")
    def inspect_current() -> list[object]:
        current.progress(1, of=4)
        return [current.job.id, current.job.attempt, current.lease.job, current.worker.name]

    with eager(app):
        handle = inspect_current.delay()
        assert handle.get() == [handle.id, 1, handle.id, "test"]
        assert handle.record().progress == (1, 4)


def test_eager_calls_retry_and_run_later_jobs_at_once() -> None:
    calls.clear()
    with eager(app):
        assert flaky.delay().get() == 3
        assert charge.options(delay=3600).delay(1).state is State.SUCCEEDED
        assert block_for_double.delay(1).get() == 3


def test_an_eager_call_raises_or_records_its_error() -> None:
    with eager(app), pytest.raises(ValueError, match="order 0"):
        charge.delay(0)
    with eager(app, errors="collect"):
        handle = charge.delay(0)
        assert handle.state is State.BURIED
        with pytest.raises(ValueError, match="order 0"):
            handle.get()


def test_arguments_and_results_pass_through_the_codec(jobs: InMemoryJobs) -> None:
    @app.task(name="test_in_memory.returns_anything")
    def returns_anything() -> object:
        return object()

    known = UUID("0192f0c1-2345-7890-abcd-ef0123456789")
    with jobs.eager():
        assert identify.delay(known, datetime(2026, 1, 2), ("a", "b")).get() == [
            known.hex,
            2026,
            ["a", "b"],
        ]
        with pytest.raises(NotEncodable, match=r"lock has no wire form"):
            identify.delay(known, threading.Lock(), ())  # type: ignore[arg-type]
        with pytest.raises(NotEncodable, match=r"object has no wire form"):
            returns_anything.delay()


# --- async tests -----------------------------------------------------------------------------


def in_both_libraries(
    test: Callable[[InMemoryJobs], Awaitable[None]],
) -> Callable[[InMemoryJobs, str], None]:
    @pytest.mark.parametrize("library", ["asyncio", "trio"])
    def run(jobs: InMemoryJobs, library: str) -> None:
        pytest.importorskip(library)
        anyio.run(test, jobs, backend=library)

    return run


@in_both_libraries
async def test_async_tests_drain_and_await(jobs: InMemoryJobs) -> None:
    handle = await wait_for_double.adelay(2)
    jobs.assert_published(wait_for_double, 2)
    assert len(await jobs.adrain()) == 2
    assert await handle == 5
    assert await (await in_async_steps.adelay()) == 12
    await charge.adelay(0)
    with pytest.raises(ValueError, match="order 0"):
        await jobs.adrain()


@in_both_libraries
async def test_async_tests_can_be_eager(jobs: InMemoryJobs) -> None:
    with jobs.eager():
        handle = await wait_for_double.adelay(2)
        assert (await handle.arecord()).state is State.SUCCEEDED
        assert wait_for_double.delay(3).get() == 7
        assert in_steps.delay(False).get() == [8, 10]


def test_coroutines_run_in_the_event_loop_of_an_async_test(jobs: InMemoryJobs) -> None:
    async def main() -> None:
        await wait_for_double.adelay(1)
        await jobs.adrain()
        assert asyncio.get_running_loop() in calls

    asyncio.run(main())


def test_concurrent_eager_calls_do_not_disturb_each_other(jobs: InMemoryJobs) -> None:
    async def main() -> list[int]:
        later = wait_for_double.options(delay=3600)
        handles = await asyncio.gather(*(later.adelay(number) for number in range(10)))
        return [await handle for handle in handles]

    with jobs.eager():
        assert asyncio.run(main()) == [2 * number + 1 for number in range(10)]


# --- assertions ------------------------------------------------------------------------------


def test_assert_published_compares_arguments_as_the_task_gets_them(jobs: InMemoryJobs) -> None:
    charge.delay(7)
    known, when = UUID("0192f0c1-2345-7890-abcd-ef0123456789"), datetime(2026, 1, 2)
    identify.delay(known, when, tags=("a",))
    assert jobs.assert_published(charge, 7).args == (7,)
    jobs.assert_published(charge, order=7)
    jobs.assert_published(charge, 7, note="")
    jobs.assert_published(charge)
    jobs.assert_published(charge, ANY)
    jobs.assert_published(identify, known, when, ("a",))
    jobs.refute_published(charge, 8)
    jobs.refute_published(charge, 7, "other")
    jobs.refute_published(double)


def test_assert_published_accepts_arguments_as_they_were_passed(jobs: InMemoryJobs) -> None:
    @app.task(name="test_in_memory.untyped")
    def untyped(value):  # type: ignore[no-untyped-def]
        return None

    untyped.delay(("a", "b"))
    jobs.assert_published(untyped, ["a", "b"])
    jobs.assert_published(untyped, ("a", "b"))


def test_assert_published_compares_the_options_that_are_given(jobs: InMemoryJobs) -> None:
    charge.options(queue="money", delay=30, priority=5, unique="seven").delay(7)
    jobs.assert_published(charge, 7)
    jobs.assert_published(charge.options(queue="money"), 7)
    jobs.assert_published(charge.options(delay=30, priority=5, unique="seven"))
    jobs.refute_published(charge.options(queue="other"), 7)
    jobs.refute_published(charge.options(delay=31))
    with pytest.raises(ConfigurationError, match="timeout=: assertions compare queue"):
        jobs.assert_published(charge.options(timeout=3), 7)


def test_a_failed_assertion_lists_what_was_published(jobs: InMemoryJobs) -> None:
    with pytest.raises(AssertionError, match="Nothing was published"):
        jobs.assert_published(charge, 8)
    charge.options(delay=30).delay(7, note="gift")
    double.options(queue="bulk").delay(1)
    with pytest.raises(AssertionError) as caught:
        jobs.assert_published(charge.options(queue="money"), 8)
    assert str(caught.value).splitlines() == [
        f"{charge.name}(8) with queue='money' was not published. Published:",
        f"  {charge.name}(7, note='gift') with queue='default', delay=30",
        f"  {double.name}(1) with queue='bulk'",
    ]
    with pytest.raises(AssertionError, match=r"double was published. Published:\n  .*double\(1\)"):
        jobs.refute_published(double)


def test_an_assertion_with_arguments_that_do_not_fit_the_task_says_so(jobs: InMemoryJobs) -> None:
    with pytest.raises(BadArguments, match="there is no parameter 'ordr'"):
        jobs.assert_published(charge, ordr=7)
    with pytest.raises(ConfigurationError, match="give a task"):
        jobs.assert_published("charge")  # type: ignore[arg-type]


def test_a_call_whose_unique_key_is_held_is_not_published_again(jobs: InMemoryJobs) -> None:
    once = charge.options(unique=Unique("once", on_conflict="return"))
    assert once.delay(1).id == once.delay(2).id
    assert [call.args for call in jobs.published] == [(1,)]
