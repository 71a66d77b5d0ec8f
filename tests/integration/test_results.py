"""Results wake their caller, have the declared type, and failures have their traceback."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest
import trio
from processes import until

from integration.conftest import HANG, Place, in_threads, working
from integration.running import Signal
from umbel import Retry, State, Umbel
from umbel.backends.postgres.records import PostgresRecords
from umbel.errors import (
    JobCancelled,
    JobExpired,
    JobFailed,
    RemoteTraceback,
    ResultTimeout,
    Unavailable,
    UnknownJob,
)


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    when: datetime


class Box(msgspec.Struct):
    points: list[Point]
    by_name: dict[str, Point]


class Model(pydantic.BaseModel):
    price: Decimal
    colour: Colour


NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
POINT = Point(3, NOON)

VALUES: dict[str, tuple[Any, Any]] = {
    "int": (int, 2**40),
    "float": (float, 0.1),
    "text": (str, "Grüße \x00 🐦"),
    "bytes": (bytes, b"\x00\xff"),
    "none": (None, None),
    "datetime": (datetime, NOON),
    "date": (date, date(2026, 1, 31)),
    "timedelta": (timedelta, timedelta(seconds=1.5)),
    "uuid": (UUID, UUID(int=7)),
    "decimal": (Decimal, Decimal("12.30")),
    "enum": (Colour, Colour.RED),
    "path": (PurePosixPath, PurePosixPath("/a/b")),
    "set": (set[int], {1, 2}),
    "tuple": (tuple[int, str], (1, "a")),
    "optional": (Point | None, POINT),
    "dataclass": (Point, POINT),
    "dataclasses": (list[Point], [POINT, POINT]),
    "struct": (Box, Box([POINT], {"a": POINT})),
    "pydantic": (Model, Model(price=Decimal("1.10"), colour=Colour.RED)),
    "any": (Any, {"plain": [1, "a", None, True]}),
}


# --- woken by push ----------------------------------------------------------------------------


def test_get_is_woken_when_the_job_finishes_and_does_not_poll(place: Place) -> None:
    app = place.patient_app()
    started, go_on = threading.Event(), threading.Event()

    @app.task
    def hold(number: int) -> int:
        started.set()
        go_on.wait(HANG)
        return number

    with working(app):
        handle = hold.delay(7)
        assert started.wait(HANG)
        waiting = threading.Timer(0.2, go_on.set)  # get() is waiting by then, most of the time
        waiting.start()
        assert handle.get(HANG) == 7
        go_on.set()
        waiting.join()


def test_sixteen_threads_wait_for_one_job_and_all_are_woken(place: Place) -> None:
    app = place.patient_app()
    go_on = threading.Event()

    @app.task
    def hold() -> str:
        go_on.wait(HANG)
        return "done"

    with working(app):
        handle = hold.delay()
        release = threading.Timer(0.2, go_on.set)
        release.start()
        assert in_threads(lambda _: app.handle(handle.id).get(HANG)) == ["done"] * 16
        release.join()


def test_awaiting_handles_is_woken_under_asyncio(place: Place) -> None:
    app = place.patient_app()

    @app.task
    async def double(number: int) -> int:
        await asyncio.sleep(0.05)
        return 2 * number

    async def main() -> list[int]:
        handles = [await double.adelay(n) for n in range(10)]
        return await asyncio.gather(*(handle.aget(HANG) for handle in handles))

    async def plainly() -> int:
        return await (await double.adelay(21))

    with working(app):
        assert asyncio.run(main()) == [2 * n for n in range(10)]
        assert asyncio.run(asyncio.wait_for(plainly(), HANG)) == 42


def test_awaiting_a_handle_is_woken_under_trio(place: Place) -> None:
    app = place.patient_app()

    @app.task
    def double(number: int) -> int:
        return 2 * number

    async def main() -> int:
        with trio.fail_after(HANG):
            return await (await double.adelay(21))

    with working(app):
        assert trio.run(main) == 42


def test_get_in_another_process_than_the_worker_is_woken(place: Place) -> None:
    app = place.app()

    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    with working(app):
        printed = place.script("print(*(add.delay(n, n).get(60) for n in range(20)))")
    assert printed.split() == [str(2 * n) for n in range(20)]


def test_a_waiting_get_asks_the_server_a_constant_number_of_times(postgres: Place) -> None:
    """PostgreSQL counts the queries. The number does not depend on the time of the wait."""
    import psycopg

    from integration.conftest import POSTGRES

    name = f"umbel-{postgres.namespace[-12:]}"
    app = Umbel(f"{postgres.url}&application_name={name}", namespace=postgres.namespace)

    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    handle = add.delay(1, 2)
    newest = "select max(query_start) from pg_stat_activity where application_name = %s"
    with psycopg.connect(POSTGRES, autocommit=True) as watching:

        def last_query() -> Any:
            row = watching.execute(newest, [name]).fetchone()
            return row and row[0]

        waiting = threading.Thread(target=lambda: _ignore(lambda: handle.get(20)), daemon=True)
        waiting.start()
        seen: dict[Any, int] = {}

        def quiet() -> bool:
            """Return whether fifty checks, in 0.4 s, have found no new query."""
            at = last_query()
            seen[at] = seen.get(at, 0) + 1
            return seen[at] > 50

        until(quiet, "get() to stop asking", seconds=15, every=0.008)
    assert handle.cancel()
    waiting.join(HANG)
    assert not waiting.is_alive()
    app.close()


def _ignore(work: Callable[[], Any]) -> None:
    with contextlib.suppress(JobCancelled):
        work()


def test_get_of_a_finished_job_answers_at_once_and_as_often_as_asked(place: Place) -> None:
    app = place.patient_app()

    @app.task
    def one() -> int:
        return 1

    with working(app):
        handle = one.delay()
        assert handle.get(HANG) == 1
    assert [handle.get(), handle.get(timeout=0), app.handle(handle.id).get()] == [1, 1, 1]


# --- typed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("annotation", "value"), VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_a_result_comes_back_as_the_type_the_task_declares(
    sqlite: Place, format: str, annotation: Any, value: Any
) -> None:
    app = sqlite.app(format=format)

    def give(same: Any) -> Any:
        return same

    give.__annotations__ = {"same": annotation, "return": annotation}
    task = app.task(give)
    with working(app):
        found = task.delay(value).get(HANG)
    assert found == value
    assert type(found) is type(value)


def test_typed_results_come_through_postgresql(postgres: Place) -> None:
    app = postgres.app()

    @app.task
    def give(point: Point, data: bytes) -> Box:
        return Box([point], {data.decode("latin-1"): point})

    with working(app):
        assert give.delay(POINT, b"\x00\xe9").get(HANG) == Box([POINT], {"\x00é": POINT})


def test_a_handle_by_id_gives_plain_values(place: Place) -> None:
    app = place.app()

    @app.task
    def give() -> Point:
        return POINT

    with working(app):
        handle = give.delay()
        assert handle.get(HANG) == POINT
        assert app.handle(handle.id).get(HANG) == {"x": 3, "when": "2026-01-31T12:00:00Z"}


def test_a_result_that_is_not_of_the_declared_type_says_so(place: Place) -> None:
    app = place.app()

    @app.task
    def lies() -> int:
        return "text"  # type: ignore[return-value]

    with working(app), pytest.raises(ValueError, match=r"result.*int"):
        lies.delay().get(HANG)


def test_a_result_without_a_wire_form_fails_the_job_and_says_why(place: Place) -> None:
    app = place.app()

    @app.task
    def give() -> Any:
        return threading.Lock()

    @app.task
    def flood() -> str:
        return "x" * 2_000_000

    with working(app):
        with pytest.raises(Exception, match="lock has no wire form"):
            give.delay().get(HANG)
        with pytest.raises(Exception, match="the limit is 1,048,576"):
            flood.delay().get(HANG)


# --- failures ---------------------------------------------------------------------------------


class OutOfStock(Exception):
    """An error that can be rebuilt from its arguments."""


class Stubborn(Exception):
    """An error that cannot be rebuilt from the arguments that it passes to Exception."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}: {detail}")


class Doubling(Exception):
    """An error whose text would differ if it were rebuilt."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no {name}")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even a text")


def failing(place: Place, error: Callable[[], BaseException], retry: Retry | None = None) -> Any:
    """Return an application and a task that raises this error."""
    app = place.app()

    @app.task(retry=retry or Retry(0))
    def fail_here() -> None:
        raise error()

    return app, fail_here


def test_the_tasks_own_exception_is_raised_again_with_the_remote_traceback(place: Place) -> None:
    app, fail_here = failing(place, lambda: OutOfStock("apples", 3))
    with working(app), pytest.raises(OutOfStock) as raised:
        fail_here.delay().get(HANG)
    assert raised.value.args == ("apples", 3)
    cause = raised.value.__cause__
    assert isinstance(cause, RemoteTraceback)
    assert "in fail_here" in cause.text
    assert "raise error()" in cause.text
    shown = "".join(traceback.format_exception(raised.value))
    assert "in fail_here" in shown, "what a user sees names the line of the task"
    assert "src/umbel/worker" not in cause.text, "our own frames say nothing to the task's author"


def test_the_tasks_own_exception_is_raised_again_in_async_code(place: Place) -> None:
    app, fail_here = failing(place, lambda: OutOfStock("pears"))

    async def main() -> None:
        await (await fail_here.adelay())

    with working(app):
        with pytest.raises(OutOfStock, match="pears"):
            asyncio.run(asyncio.wait_for(main(), HANG))
        with pytest.raises(OutOfStock, match="pears"):
            trio.run(main)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        KeyError("k"),
        FileNotFoundError(2, "No such file", "x"),
        ZeroDivisionError(),
    ],
    ids=lambda e: type(e).__name__,
)
def test_builtin_exceptions_are_raised_again(sqlite: Place, error: Exception) -> None:
    app, fail_here = failing(sqlite, lambda: error)
    with working(app), pytest.raises(type(error)) as raised:
        fail_here.delay().get(HANG)
    assert str(raised.value) == str(error)


class _Local:
    class Nested(Exception):
        pass


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (lambda: Stubborn(7, detail="why"), r"Stubborn: 7: why"),
        (lambda: Doubling("milk"), r"Doubling: no milk"),
        (lambda: ValueError(object), r"ValueError: <class 'object'>"),
        (lambda: type("MadeUp", (Exception,), {})("x"), r"MadeUp: x"),
        (lambda: KeyboardInterrupt("stop"), r"KeyboardInterrupt: stop"),
        (lambda: SystemExit(3), r"SystemExit: 3"),
    ],
    ids=["signature", "text", "arguments", "class", "interrupt", "exit"],
)
def test_an_exception_that_cannot_be_rebuilt_is_raised_as_job_failed(
    sqlite: Place, error: Callable[[], BaseException], text: str
) -> None:
    app, fail_here = failing(sqlite, error)
    with working(app):
        handle = fail_here.delay()
        with pytest.raises(JobFailed, match=text) as raised:
            handle.get(HANG)
        assert handle.id in str(raised.value)
        assert isinstance(raised.value.__cause__, RemoteTraceback)
        assert handle.state is State.BURIED
        assert fail_here.delay().id != handle.id, "the worker goes on"


def test_an_exception_whose_text_cannot_be_shown_is_recorded_all_the_same(sqlite: Place) -> None:
    app, fail_here = failing(sqlite, Mute)
    with working(app):
        handle = fail_here.delay()
        with pytest.raises((JobFailed, Mute)):
            handle.get(HANG)
        assert "cannot be shown" in handle.record().reason


def test_a_nested_exception_class_is_raised_one_way_or_the_other(sqlite: Place) -> None:
    app, fail_here = failing(sqlite, lambda: _Local.Nested("inside"))
    with working(app), pytest.raises((JobFailed, _Local.Nested), match="inside"):
        fail_here.delay().get(HANG)


def test_a_failure_in_another_process_whose_class_is_unknown_here_names_it(place: Place) -> None:
    app, fail_here = failing(place, lambda: OutOfStock("figs"))
    with working(app):
        handle = fail_here.delay()
        with pytest.raises(OutOfStock):
            handle.get(HANG)
    code = """
from umbel.errors import JobFailed
try:
    app.handle(sys.argv[3]).get(60)
except JobFailed as error:
    print(error)
"""
    assert "OutOfStock: figs" in place.script(code, handle.id)


def test_a_job_is_waited_for_until_its_retries_are_over(place: Place) -> None:
    app = place.app()
    tries: list[int] = []

    @app.task(retry=Retry(3, first=0.05, factor=1))
    def third_time_lucky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise OutOfStock(len(tries))
        return len(tries)

    with working(app):
        handle = third_time_lucky.delay()
        assert handle.get(HANG) == 3
    assert [attempt.ended for attempt in handle.record().attempts] == [
        "retry",
        "retry",
        "succeeded",
    ]


# --- no result --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "job", ["0" * 32, "no uuid", "", "'; drop --"], ids=["new", "no uuid", "empty", "sql"]
)
def test_an_unknown_id_raises_and_is_never_pending(place: Place, job: str) -> None:
    handle = place.app().handle(job)
    with pytest.raises(UnknownJob):
        _ = handle.state
    with pytest.raises(UnknownJob):
        handle.get(timeout=1)
    with pytest.raises(UnknownJob):
        handle.cancel()
    with pytest.raises(UnknownJob):
        asyncio.run(handle.aget())


def test_a_job_of_another_namespace_is_unknown(place: Place) -> None:
    app = place.app()

    @app.task
    def one() -> int:
        return 1

    handle = one.delay()
    stranger = place.app(namespace="another").handle(handle.id)
    with pytest.raises(UnknownJob):
        _ = stranger.state
    with pytest.raises(UnknownJob):
        stranger.cancel()
    assert handle.state is State.QUEUED


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_job_that_is_not_finished_in_time_raises_result_timeout(
    place: Place, timeout: float
) -> None:
    app = place.app()

    @app.task
    def one() -> int:
        return 1

    handle = one.delay()
    with pytest.raises(ResultTimeout, match=f"{handle.id} has not finished within {timeout} s$"):
        handle.get(timeout=timeout)
    with pytest.raises(TimeoutError):
        asyncio.run(handle.aget(timeout=timeout))
    assert handle.state is State.QUEUED, "it goes on waiting for a worker"
    with working(app):
        assert handle.get(HANG) == 1


UNSERVED = (
    "No running worker serves the queue mail. Start one: umbel -A MODULE:APP worker --queues mail"
)


def test_a_wait_that_times_out_says_that_no_worker_serves_the_queue(place: Place) -> None:
    app = place.app()

    @app.task(queue="mail")
    def one() -> int:
        return 1

    handle = one.delay()
    expected = f"{handle.id} has not finished within 1 s. {UNSERVED}$"
    with working(app, queues=("other",)):
        with pytest.raises(ResultTimeout, match=expected):
            handle.get(timeout=1)
        with pytest.raises(ResultTimeout, match=expected):
            asyncio.run(handle.aget(timeout=1))


def test_a_wait_for_a_job_that_runs_says_nothing_of_workers(place: Place) -> None:
    app, began, end = place.app(), Signal(), Signal()

    @app.task
    def one() -> None:
        began.set()
        end.wait()

    with working(app):
        handle = one.delay()
        began.wait()
        with pytest.raises(ResultTimeout, match=f"{handle.id} has not finished within 1 s$"):
            handle.get(timeout=1)
        end.set()
        handle.get(HANG)


def test_a_long_wait_warns_once_that_no_worker_serves_the_queue_and_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("umbel.app.client._WARNING_DELAY_SECONDS", 0.05)
    app = place.app()

    @app.task(queue="mail")
    def one() -> int:
        return 1

    def warnings() -> list[str]:
        return [text for text in caplog.messages if UNSERVED in text]

    def wait(_: int) -> int:
        return one.delay().get(HANG)

    with ThreadPoolExecutor(3) as pool:
        waiting = pool.map(wait, range(3))
        until(lambda: bool(warnings()), "the warning")
        with working(app):
            assert list(waiting) == [1, 1, 1]
    assert len(warnings()) == 1
    assert warnings()[0].startswith(
        "a caller in this process is waiting for the result of a job that has not started job="
    )


def test_a_result_is_waited_for_when_a_first_look_had_no_answer(
    postgres: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def find_finished_blocking(self: PostgresRecords, job: str, timeout: float) -> None:
        looks.append(job)
        raise Unavailable("no answer")

    monkeypatch.setattr(PostgresRecords, "find_finished_blocking", find_finished_blocking)
    app = postgres.app()

    @app.task
    def one() -> int:
        return 1

    handle = one.delay()
    with working(app):
        assert handle.get(HANG) == 1
    assert looks == [handle.id]


def test_a_task_that_timed_out_is_no_result_timeout(place: Place) -> None:
    app = place.app()

    @app.task(timeout=0.1, retry=Retry(0))
    async def slow() -> None:
        await asyncio.sleep(HANG)

    with working(app), pytest.raises(TimeoutError, match=r"timed out after 0\.1 s") as raised:
        slow.delay().get(HANG)
    assert not isinstance(raised.value, ResultTimeout)


def test_a_cancelled_job_raises_and_gives_the_reason(place: Place) -> None:
    app = place.app()

    @app.task
    def never() -> None: ...

    handle = never.delay()
    assert handle.cancel("changed my mind")
    with pytest.raises(JobCancelled, match="changed my mind"):
        handle.get(timeout=5)
    assert handle.cancel(), "cancelling twice is fine"


def test_cancelling_wakes_waiting_callers(place: Place) -> None:
    app = place.patient_app()
    answers: list[BaseException] = []

    @app.task
    def never() -> None: ...

    handle = never.delay()

    def wait() -> None:
        try:
            handle.get(HANG)
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)  # nothing is asserted of it: most of the time get() waits by then
    assert handle.cancel("enough")
    thread.join(HANG)
    assert not thread.is_alive()
    assert [type(answer) for answer in answers] == [JobCancelled]


def test_a_running_job_that_is_cancelled_raises(place: Place) -> None:
    app = place.app()
    started = threading.Event()

    @app.task
    async def hold() -> None:
        started.set()
        await asyncio.sleep(HANG)

    with working(app, lease=1):
        handle = hold.delay()
        assert started.wait(HANG)
        assert asyncio.run(handle.acancel("stop it"))
        with pytest.raises(JobCancelled, match="stop it"):
            handle.get(HANG)
    assert handle.state is State.CANCELLED


def test_an_expired_job_raises(place: Place) -> None:
    app = place.app()

    @app.task
    def never() -> None: ...

    handle = never.options(expires=0.001).delay()
    until(lambda: time.time() > (handle.record().expires or 0), "the expiry to pass")
    with working(app), pytest.raises(JobExpired, match=handle.id):
        handle.get(HANG)
    assert handle.state is State.EXPIRED


# --- what is remembered -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["declared", "by the call"])
def test_track_state_keeps_the_record_without_the_result(place: Place, how: str) -> None:
    app = place.app()

    @app.task(track="state" if how == "declared" else "result")
    def give() -> int:
        return 7

    task = give if how == "declared" else give.options(track="state")
    with working(app):
        handle = task.delay()
        assert handle.get(HANG) is None
    assert handle.state is State.SUCCEEDED
    assert handle.record().result is None


@pytest.mark.parametrize("how", ["declared", "by the call"])
def test_track_failures_forgets_success_and_keeps_failure(place: Place, how: str) -> None:
    app = place.app()

    @app.task(track="failures" if how == "declared" else "result", retry=0)
    def give(fail: bool) -> int:
        if fail:
            raise OutOfStock("plums")
        return 7

    task = give if how == "declared" else give.options(track="failures")
    with working(app):
        good, bad = task.delay(False), task.delay(True)
        with pytest.raises(OutOfStock):
            bad.get(HANG)
        until(lambda: place.ids() == [bad.id], "the job to vanish")
        with pytest.raises(UnknownJob):
            _ = good.state
    assert bad.state is State.BURIED


def test_waiting_for_a_job_that_leaves_no_record_ends(place: Place) -> None:
    app = place.patient_app()
    started, go_on = threading.Event(), threading.Event()

    @app.task(track="failures")
    def hold() -> None:
        started.set()
        go_on.wait(HANG)

    with working(app):
        handle = hold.delay()
        assert started.wait(HANG)
        release = threading.Timer(0.2, go_on.set)
        release.start()
        with pytest.raises(UnknownJob):
            handle.get(HANG)
        release.join()


def test_a_record_has_the_whole_history(place: Place) -> None:
    app = place.app()

    @app.task(queue="mail", priority=3)
    def give() -> int:
        return 7

    with working(app, name="the worker"):
        handle = give.delay()
        handle.get(HANG)
    record = handle.record()
    assert (record.queue, record.priority, record.worker) == ("mail", 3, "the worker")
    assert record.started is not None
    assert record.finished is not None
    assert record.created <= record.started + 1
    assert record.started <= record.finished
    assert [(a.number, a.ended, a.worker) for a in record.attempts] == [
        (1, "succeeded", "the worker")
    ]


def test_the_result_of_a_task_is_deleted_after_its_own_time(place: Place) -> None:
    app = place.app()

    @app.task(name="short", keep=0.01)
    def short() -> int:
        return 1

    @app.task(name="long", keep=3600)
    def long() -> int:
        return 2

    @app.task(name="failing", keep=0.01, retry=0)
    def failing() -> None:
        raise OSError("no")

    with working(app):
        by_task, by_call = short.delay(), long.options(keep=0.01).delay()
        kept = [long.delay(), short.options(keep=3600).delay(), failing.delay()]
        assert by_task.get(HANG) == 1
        assert by_call.get(HANG) == 2
        assert [handle.get(HANG) for handle in kept[:2]] == [2, 1]
        with pytest.raises(OSError, match="no"):
            kept[2].get(HANG)
    with working(app):  # a worker prunes when it starts, then about once a minute
        until(lambda: place.ids() == sorted(handle.id for handle in kept), "only these are kept")
    with pytest.raises(UnknownJob):
        by_task.get(HANG)
