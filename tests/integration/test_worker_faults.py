"""Bad tasks, bad messages and bad connections: the worker goes on, and nothing is lost."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import psycopg
import pytest
from running import (
    DEADLINE,
    POSTGRES,
    Gauge,
    Heard,
    Mortal,
    Places,
    Proxy,
    Running,
    Signal,
    ask,
    ask_backend,
    beats_pass,
    ended,
    execute,
    finished,
    insert_job,
    until,
    with_faults,
    working,
)

from umbel import Handle, Retry, State, Umbel, WorkerOptions, current, retry
from umbel.backends import JobFilter
from umbel.errors import Unavailable
from umbel.messages import Record, fresh_id
from umbel.telemetry import events

Call = Callable[[], Awaitable[Any]]


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    places = Places()
    yield places
    places.close()


@pytest.fixture(params=["file", "postgres"])
def app(request: pytest.FixtureRequest, places: Places, tmp_path: Path) -> Iterator[Umbel]:
    with places.app(request.param, tmp_path) as app:
        yield with_probes(app)


@pytest.fixture
def memory(places: Places, tmp_path: Path) -> Iterator[Umbel]:
    with places.app("memory", tmp_path) as app:
        yield with_probes(app)


def with_probes(app: Umbel) -> Umbel:
    @app.task(name="probe")
    async def probe() -> str:
        return "alive"

    @app.task(name="probe_in_thread")
    def probe_in_thread() -> str:
        return "alive"

    return app


def still_works(app: Umbel) -> None:
    """Check that the worker runs other jobs of both kinds, and settles them."""
    probes = [app.registry.find(name).delay() for name in ("probe", "probe_in_thread")]
    assert [probe.get(timeout=DEADLINE) for probe in probes] == ["alive", "alive"]


def both_kinds(app: Umbel, body: Callable[[], Any], **options: Any) -> list[Any]:
    """Declare the same bad task as a coroutine and as a thread."""

    @app.task(name="bad", **{"retry": 0, **options})
    async def bad() -> Any:
        return body()

    @app.task(name="bad_in_thread", **{"retry": 0, **options})
    def bad_in_thread() -> Any:
        return body()

    return [bad, bad_in_thread]


# --- tasks that raise ------------------------------------------------------------------------


class Unpicklable(Exception):
    def __init__(self, number: int, lock: Any) -> None:
        super().__init__(number)
        self.lock = lock


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot be shown")

    __repr__ = __str__


class Deadly(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__module__", "__qualname__"):
            raise RuntimeError("nameless")
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=Meta):
    pass


def endless() -> Exception:
    """Return an error that is its own cause."""
    error = ValueError("round and round")
    error.__context__ = OSError("inner")
    error.__context__.__context__ = error
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "BaseException": lambda: BaseException("base"),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "StopIteration": lambda: StopIteration(1),
    "StopAsyncIteration": StopAsyncIteration,
    "CancelledError": asyncio.CancelledError,
    "MemoryError": MemoryError,
    "group": lambda: BaseExceptionGroup("many", [SystemExit(1), ValueError("no")]),
    "not to be pickled": lambda: Unpicklable(1, threading.Lock()),
    "not to be shown": Unshowable,
    "deadly to show": Deadly,
    "without a name": Nameless,
    "its own cause": endless,
    "of ten megabytes": lambda: ValueError("x" * 10_000_000),
    "of half a character": lambda: ValueError("caf\udce9 \ud800"),
    "with a NUL": lambda: ValueError("a\x00b"),
}


@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS.keys())
def test_whatever_a_task_raises_it_is_buried_and_the_worker_goes_on(
    app: Umbel, make: Callable[[], BaseException]
) -> None:
    heard = Heard(app)

    def body() -> None:
        raise make()

    with working(app):
        handles = [task.delay() for task in both_kinds(app, body)]
        for handle in handles:
            record = finished(handle)
            assert (record.state, ended(record)) == (State.BURIED, ["failed"])
            assert record.failure is not None
            with pytest.raises(Exception):  # noqa: B017, PT011 - rebuilt, or told of
                handle.get(timeout=DEADLINE)
        still_works(app)
    assert not heard.all(events.ServiceFailed)


@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS.keys())
def test_whatever_a_task_raises_it_is_tried_again(
    memory: Umbel, make: Callable[[], BaseException]
) -> None:
    def body() -> str:
        if current.job.attempt == 1:
            raise make()
        return "second time"

    with working(memory):
        for task in both_kinds(memory, body, retry=Retry(1, first=0)):
            assert task.delay().get(timeout=DEADLINE) == "second time"


def test_a_task_that_cancels_itself_has_failed(memory: Umbel) -> None:
    @memory.task(retry=0)
    async def suicidal() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with working(memory):
        assert finished(suicidal.delay()).state is State.BURIED
        still_works(memory)


def test_a_recursion_without_end_is_a_failure(memory: Umbel) -> None:
    def deeper(n: int) -> int:
        return deeper(n + 1)

    with working(memory):
        for task in both_kinds(memory, lambda: deeper(0)):
            assert finished(task.delay()).state is State.BURIED
        still_works(memory)


# --- tasks that return -----------------------------------------------------------------------


class Slippery:
    """A result that looks like a pydantic model, and whose ``model_dump`` raises."""

    def model_dump(self, mode: str) -> Any:
        raise RuntimeError("no dump")


RESULTS: dict[str, Callable[[], Any]] = {
    "an object": object,
    "a lock": threading.Lock,
    "a generator": lambda: (n for n in range(3)),
    "a module": lambda: sys,
    "ten megabytes": lambda: "x" * 10_000_000,
    "half a character": lambda: "\ud800",
    "itself": lambda: (lambda items: items.append(items) or items)([]),
    "a broken model": Slippery,
    "a key of no kind": lambda: {object(): 1},
}


@pytest.mark.parametrize("make", RESULTS.values(), ids=RESULTS.keys())
def test_a_result_that_cannot_be_stored_buries_the_job_immediately(
    app: Umbel, make: Callable[[], Any]
) -> None:
    with working(app):
        for task in both_kinds(app, make, retry=Retry(5, first=3600)):
            record = finished(task.delay())
            assert (record.state, ended(record)) == (State.BURIED, ["failed"])
            assert record.reason
        still_works(app)


def test_a_result_just_under_the_limit_is_stored(app: Umbel) -> None:
    @app.task
    def large() -> str:
        return "x" * 1_000_000

    with working(app):
        assert len(large.delay().get(timeout=DEADLINE)) == 1_000_000


# --- tasks that misbehave --------------------------------------------------------------------


def test_a_task_may_flood_its_output(memory: Umbel, capfd: pytest.CaptureFixture[str]) -> None:
    def flood() -> str:
        for _ in range(2_000):
            sys.stdout.write("spam " * 200 + "\n")
            sys.stderr.write("eggs " * 200 + "\n")
        return "said"

    with working(memory):
        for task in both_kinds(memory, flood):
            assert task.delay().get(timeout=DEADLINE) == "said"
        still_works(memory)
    capfd.readouterr()


def test_a_task_may_close_its_output(memory: Umbel, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, _: str) -> int:
            raise ValueError("I/O operation on closed file")

        flush = close = write

    monkeypatch.setattr(sys, "stdout", Closed())
    with working(memory):
        for task in both_kinds(memory, lambda: print("into the void")):
            assert finished(task.delay()).state is State.BURIED
        still_works(memory)


def test_a_task_may_leak_threads_and_tasks(memory: Umbel) -> None:
    end, leaked = threading.Event(), Gauge()

    def linger() -> None:
        with leaked:
            end.wait(60)

    async def linger_async() -> None:
        with leaked:
            await asyncio.sleep(3600)

    kept: list[Any] = []

    @memory.task
    async def leaky() -> None:
        kept.extend(asyncio.create_task(linger_async()) for _ in range(5))
        threading.Thread(target=linger, daemon=True).start()

    @memory.task
    def leaky_thread() -> None:
        for _ in range(5):
            threading.Thread(target=linger, daemon=True).start()

    with working(memory):
        leaky.delay().get(timeout=DEADLINE)
        leaky_thread.delay().get(timeout=DEADLINE)
        until(lambda: leaked.now == 11, "the leaks")
        still_works(memory)
    end.set()


def test_a_leaked_task_that_fails_affects_no_other(memory: Umbel) -> None:
    async def fail() -> None:
        raise ValueError("nobody awaits me")

    @memory.task
    async def leaky() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        asyncio.create_task(fail())  # noqa: RUF006 - the very mistake

    with working(memory):
        leaky.delay().get(timeout=DEADLINE)
        still_works(memory)


def test_a_coroutine_that_swallows_a_cancellation_ends_when_it_wants(memory: Umbel) -> None:
    runs, swallowed, release = Signal("the start"), Signal("the stop"), Signal("the release")

    @memory.task
    async def stubborn() -> str:
        runs.set()
        while not release:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                swallowed.set()
        return "my own way"

    with working(memory):
        handle = stubborn.delay()
        runs.wait()
        handle.cancel()
        swallowed.wait()
        still_works(memory)
        release.set()
        assert finished(handle).state in (State.SUCCEEDED, State.CANCELLED)
        still_works(memory)


def test_a_thread_that_swallows_a_cancellation_ends_when_it_wants(memory: Umbel) -> None:
    runs, swallowed, release = Signal("the start"), Signal("the stop"), Signal("the release")

    @memory.task
    def stubborn() -> str:
        runs.set()
        while not release:
            try:
                time.sleep(0.001)
            except BaseException:
                swallowed.set()
        return "my own way"

    with working(memory):
        handle = stubborn.delay()
        runs.wait()
        handle.cancel()
        swallowed.wait()
        still_works(memory)
        release.set()
        assert finished(handle).state in (State.SUCCEEDED, State.CANCELLED)
        still_works(memory)


def test_a_coroutine_that_blocks_the_loop_for_longer_than_a_lease_is_recorded_once(
    app: Umbel,
) -> None:
    heard, gauge = Heard(app), Gauge()

    @app.task
    async def block() -> str:
        with gauge:
            time.sleep(3.5)
        return "rude"

    with working(app, name="watcher", io=0, cpu=1, lease=2.0), working(app, lease=2.0):
        handle = block.delay()
        heard.wait(events.LoopBlocked)
        assert handle.get(timeout=DEADLINE) == "rude"
        still_works(app)
    assert (gauge.entered, ended(handle.record())) == (1, ["succeeded"])
    assert not heard.all(events.LeasesLost)
    assert not heard.all(events.WorkerLost)


def test_a_blocked_event_loop_is_reported_after_a_second_and_again_when_it_runs(app: Umbel) -> None:
    heard, others_wait, go = Heard(app), Signal("another coroutine"), Signal("the end")

    @app.task(name="patient")
    async def patient() -> None:
        others_wait.set()
        await go.seen()

    @app.task(name="rude")
    async def rude() -> None:
        time.sleep(3.5)

    with working(app, lease=60.0):
        waits = patient.delay()
        others_wait.wait()
        blocks = rude.delay()
        blocked = heard.wait(events.LoopBlocked, tasks=("rude",))
        assert blocked.jobs == (blocks.id,)
        assert 1.0 <= blocked.seconds < 60.0, "it does not wait for a lease"
        assert "time.sleep(3.5)" in blocked.stack
        ended = heard.wait(events.LoopUnblocked)
        assert ended.seconds >= 2.0, "it says how long the block took in all"
        go.set()
        waits.get(timeout=DEADLINE)
    assert len(heard.all(events.LoopBlocked, tasks=("rude",))) == 1, "one block, one report"


def test_a_block_in_code_that_a_coroutine_started_names_all_coroutines(app: Umbel) -> None:
    heard = Heard(app)

    async def part() -> None:
        time.sleep(2.5)

    @app.task(name="starter")
    async def starter() -> None:
        await asyncio.create_task(part())

    with working(app, lease=60.0):
        starter.delay()
        blocked = heard.wait(events.LoopBlocked, tasks=("starter",))
        assert "time.sleep(2.5)" in blocked.stack


def test_a_policy_that_cannot_decide_harms_only_its_own_job(memory: Umbel) -> None:
    class Odd(type):
        def __instancecheck__(cls, instance: object) -> bool:
            raise RuntimeError("cannot tell")

    class Never(Exception, metaclass=Odd):
        pass

    def body() -> None:
        raise OSError("no")

    with working(memory):
        for task in both_kinds(memory, body, retry=Retry(3, first=0, never=Never)):
            assert finished(task.delay()).state is State.BURIED
        still_works(memory)


# --- rows written by hand --------------------------------------------------------------------


def work_of(app: Umbel) -> Gauge:
    ran = Gauge()

    @app.task(name="work")
    async def work(n: int = 0) -> int:
        with ran:
            return n

    return ran


def buried(handle: Handle[Any]) -> Record:
    record = finished(handle)
    assert record.state is State.BURIED
    assert record.reason, "it has to say why"
    return record


GARBAGE: dict[str, tuple[dict[str, Any], str]] = {
    "no json": ({"body": b'{"args": [1'}, "data"),
    "random bytes": ({"body": bytes(range(256))}, "data"),
    "nothing": ({"body": b""}, "data"),
    "no call": ({"body": b"[1, 2]"}, "data"),
    "args of the wrong shape": ({"body": b'{"args": 7}'}, "data"),
    "too many arguments": ({"body": b'{"args": [1, 2, 3]}'}, "data"),
    "an argument of the wrong type": ({"body": b'{"args": ["one"]}'}, "n: "),
    "an unknown argument": ({"body": b'{"kwargs": {"m": 1}}'}, "data"),
    "an unknown media type": ({"content_type": "text/xml"}, "datacontenttype"),
    "a pickle": ({"content_type": "application/x-umbel-pickle", "body": b"x" * 64}, "pickle"),
    "no messagepack": ({"content_type": "application/msgpack", "body": b"\xc1"}, "data"),
    "two megabytes": ({"body": b'{"args": ["' + b"x" * 2_000_000 + b'"]}'}, "data"),
    "a timeout of words": ({"headers": '{"timeout": "soon"}'}, "timeout"),
    "a timeout of objects": ({"headers": '{"timeout": {"s": 1}}'}, "timeout"),
    "a policy of words": ({"headers": '{"retry": "often"}'}, "retry"),
    "a policy without an end": (
        {"headers": msgspec.json.encode({"retry": "[" * 50_000}).decode()},
        "retry",
    ),
    "an unknown track": ({"headers": '{"track": "everything"}'}, "track"),
}


@pytest.mark.parametrize("kind", ["", "io", "cpu"])
@pytest.mark.parametrize(("columns", "says"), GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_written_manually_is_buried_with_a_reason(
    app: Umbel, columns: dict[str, Any], says: str, kind: str
) -> None:
    ran, heard = work_of(app), Heard(app)
    with working(app):
        handle = insert_job(app, kind=kind, **columns)
        still_works(app)
        record = buried(handle)
        assert says in record.reason
        assert bytes(record.body.data) == columns.get("body", b'{"args": [], "kwargs": {}}')
    assert ran.entered == 0
    assert not heard.all(events.ServiceFailed)


ODD: dict[str, dict[str, Any]] = {
    "headers that are a list": {"headers": "[1, 2]"},
    "headers that are text": {"headers": '"text"'},
    "headers that are null": {"headers": "null"},
    "headers of other types": {"headers": '{"a": 1, "b": null, "c": {"d": []}}'},
    "headers with a huge number": {"headers": '{"a": 1e400}'},
    "headers with a huge integer": {"headers": '{"a": %s}' % ("9" * 5000)},
    "headers with half a character": {"headers": '{"a": "\\ud800"}'},
    "sections that are a list": {"sections": "[1, 2]"},
    "sections of other types": {"sections": '{"mail": "often"}'},
    "a story that is none": {"attempts": '{"a": 1}'},
    "a story of strangers": {"attempts": "[1, null]"},
    "a trace of its own": {"traceparent": "not-a-trace"},
    "a trace with quotes": {"traceparent": "'\"--;\\"},
    "an attempt below zero": {"attempt": -7},
    "an attempt beyond counting": {"attempt": 2_000_000_000},
    "deaths beyond counting": {"deaths": 2_000_000_000},
    "a priority below all": {"priority": -32768},
    "no deaths allowed": {"max_deaths": 0},
}


@pytest.mark.parametrize("columns", ODD.values(), ids=ODD.keys())
def test_odd_columns_written_manually_are_refused_or_end_the_job(
    app: Umbel, columns: dict[str, Any]
) -> None:
    """The job runs, is buried, or is refused by the table. The worker and operators continue."""
    work_of(app)
    heard = Heard(app)
    with working(app, lease=1.5):
        try:
            handle = insert_job(app, kind="io", **columns)
        except (sqlite3.Error, psycopg.Error):
            return  # refused by the table
        still_works(app)
        until(lambda: not _lives(app, handle), "the job to end")
        found = ask(app, lambda operations: operations.jobs(JobFilter(limit=100)))
        assert handle.id in {record.id for record in found}
        assert handle.record().state.finished
    assert not heard.all(events.ServiceFailed)


def _lives(app: Umbel, handle: Handle[Any]) -> bool:
    return bool(execute(app, "select 1 from $schema.job where id = ?", handle.id))


@pytest.mark.parametrize("sections", ["[1, 2]", '{"mail": "often"}', '{"mail": null}'])
def test_sections_written_manually_affect_only_their_own_job(app: Umbel, sections: str) -> None:
    @app.task(name="work", retry=0)
    async def work() -> None:
        with retry(2, name="mail", first=0):
            raise OSError("no")

    @app.task(name="work_in_thread", retry=0)
    def work_in_thread() -> None:
        with retry(2, name="mail", first=0):
            raise OSError("no")

    with working(app, lease=1.5):
        handles = [
            insert_job(app, kind="io", sections=sections),
            insert_job(app, kind="cpu", task="work_in_thread", sections=sections),
        ]
        still_works(app)
        for handle in handles:
            assert finished(handle).state is State.BURIED
        still_works(app)


def test_a_steep_retry_policy_written_manually_affects_only_its_own_job(app: Umbel) -> None:
    @app.task(name="work")
    async def work() -> None:
        raise OSError("no")

    steep = {"retry": '{"times": 90, "first": 1, "factor": 1e300, "cap": 0}'}
    with working(app):
        handle = insert_job(app, kind="io", attempt=89, headers=msgspec.json.encode(steep).decode())
        still_works(app)
        assert finished(handle).state is State.BURIED
        still_works(app)


REFUSED: dict[str, dict[str, Any]] = {
    "no id": {"id": None},
    "no task": {"task": None},
    "an empty task": {"task": ""},
    "an endless task": {"task": "x" * 256},
    "no queue": {"queue": None},
    "an empty queue": {"queue": ""},
    "no body": {"body": None},
    "an unknown kind": {"kind": "gpu"},
    "an unknown state": {"state": "asleep"},
    "a run without an owner": {"state": "running"},
    "an owner without a run": {"owner": "me"},
    "a schedule without a time": {"state": "scheduled"},
    "headers that are no json": {"headers": "{nope"},
    "a priority in words": {"priority": "high"},
}


@pytest.mark.parametrize("columns", REFUSED.values(), ids=REFUSED.keys())
def test_what_makes_no_sense_is_refused_by_the_table(app: Umbel, columns: dict[str, Any]) -> None:
    asyncio.run(app.backend.migrate())
    with pytest.raises((sqlite3.Error, psycopg.Error)):
        insert_job(app, **columns)


def test_a_priority_too_large_for_us_is_refused_or_simply_first(app: Umbel) -> None:
    ran = work_of(app)
    with working(app):
        try:
            handle = insert_job(app, priority=2**40, kind="io")
        except (sqlite3.Error, psycopg.Error):
            return  # refused by the table
        still_works(app)
        assert handle.get(timeout=DEADLINE) == 0
    assert ran.entered == 1


def test_one_bad_row_in_a_batch_does_not_hold_up_the_good_ones(app: Umbel) -> None:
    ran = work_of(app)
    asyncio.run(app.backend.migrate())
    bad = [insert_job(app, kind="io", **columns) for columns, _ in GARBAGE.values()]
    good = [insert_job(app, kind="io", body=b'{"args": [%d]}' % n) for n in range(20)]
    with working(app, io=50):
        assert [handle.get(timeout=DEADLINE) for handle in good] == list(range(20))
        for handle in bad:
            buried(handle)
    assert ran.entered == 20


@pytest.mark.parametrize("kind", ["io", "cpu"])
def test_a_job_whose_task_has_changed_its_kind_is_still_run_within_the_budget(
    app: Umbel, kind: str
) -> None:
    """Published while the task was async def, run after it became def, and the reverse."""
    gauge, go = Gauge(), Signal("the end")

    @app.task(name="now_thread")
    def now_thread() -> None:
        with gauge:
            go.wait()

    @app.task(name="now_coroutine")
    async def now_coroutine() -> None:
        with gauge:
            await go.seen()

    asyncio.run(app.backend.migrate())
    task = "now_thread" if kind == "io" else "now_coroutine"
    budget = {"io": 9, "cpu": 1} if kind == "io" else {"io": 1, "cpu": 9}
    handles = [insert_job(app, kind=kind, task=task) for _ in range(4)]
    with working(app, **budget):
        until(lambda: gauge.now >= 1, "one to run")
        until(
            lambda: sum(handle.state is State.RUNNING for handle in handles) == 1,
            "what it cannot start to go back",
        )
        go.set()
        for handle in handles:
            handle.get(timeout=DEADLINE)
    assert gauge.most == 1


@pytest.mark.parametrize(("kind", "task"), [("io", "now_thread"), ("cpu", "now_coroutine")])
def test_a_job_whose_task_changed_its_kind_is_not_lost_in_a_worker_without_that_budget(
    app: Umbel, kind: str, task: str
) -> None:
    @app.task(name="now_thread")
    def now_thread() -> str:
        return "done"

    @app.task(name="now_coroutine")
    async def now_coroutine() -> str:
        return "done"

    asyncio.run(app.backend.migrate())
    handle = insert_job(app, kind=kind, task=task)
    alone = {"io": 5, "cpu": 0} if kind == "io" else {"io": 0, "cpu": 5}
    both = with_probes(app).registry.find("probe" if kind == "io" else "probe_in_thread")
    with working(app, name="narrow", lease=1.5, **alone):
        both.delay().get(timeout=DEADLINE)
        with working(app, name="wide", lease=1.5):
            assert handle.get(timeout=DEADLINE) == "done"


# --- published with SQL ----------------------------------------------------------------------


def publish_sql(app: Umbel, task: str, args: str, **more: Any) -> Handle[Any]:
    """Publish in the documented way: through a view on SQLite, by a function on PostgreSQL."""
    job = fresh_id()
    if app.settings.broker.startswith("sqlite"):
        names = ["id", "task", "args", "namespace", *more]
        values = [job, task, args, app.settings.namespace, *more.values()]
        marks = ", ".join("?" * len(values))
        execute(app, f"insert into publish ({', '.join(names)}) values ({marks})", *values)
    else:
        extra = "".join(f", {name} => ?" for name in more)
        execute(
            app,
            f"select $schema.publish(task => ?, args => ?::jsonb, namespace => ?, id => ?{extra})",
            *[task, args, app.settings.namespace, job],
            *more.values(),
        )
    return app.handle(job)


def test_sql_publishes_real_tasks_of_both_kinds(app: Umbel) -> None:
    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="add_async")
    async def add_async(a: int, b: int) -> int:
        return a + b

    with working(app):
        handles = [publish_sql(app, task, "[1, 2]") for task in ("add", "add_async")]
        assert [handle.get(timeout=DEADLINE) for handle in handles] == [3, 3]


def test_sql_publishes_to_a_queue_with_a_priority(app: Umbel) -> None:
    order: list[int] = []

    @app.task(name="note", queue="mail")
    def note(n: int) -> None:
        order.append(n)

    asyncio.run(app.backend.migrate())
    handles = [publish_sql(app, "note", f"[{n}]", queue="mail", priority=n) for n in (1, 3, 2)]
    with working(app, cpu=1):
        for handle in handles:
            handle.get(timeout=DEADLINE)
    assert order == [3, 2, 1]


def test_sql_publishes_for_later(app: Umbel) -> None:
    work_of(app)
    later: Any = 3600.0 if app.settings.broker.startswith("sqlite") else "1 hour"
    asyncio.run(app.backend.migrate())
    handle = publish_sql(app, "work", "[]", delay=later)
    with working(app):
        still_works(app)
        assert handle.state is State.SCHEDULED


@pytest.mark.parametrize("args", ["[1, 2, 3]", '["one"]'])
def test_sql_that_publishes_a_call_that_does_not_fit_is_buried(app: Umbel, args: str) -> None:
    work_of(app)
    with working(app):
        handle = publish_sql(app, "work", args)
        assert buried(handle).reason


@pytest.mark.parametrize("args", ["{nope", '{"a": 1}', "7"])
def test_sql_that_publishes_no_list_of_arguments_is_refused_or_buried(
    app: Umbel, args: str
) -> None:
    work_of(app)
    with working(app):
        try:
            handle = publish_sql(app, "work", args)
        except (sqlite3.Error, psycopg.Error):
            return
        assert buried(handle).reason


@pytest.mark.parametrize(
    ("budget", "task"), [({"cpu": 0}, "probe"), ({"io": 0}, "probe_in_thread")]
)
def test_a_worker_of_one_kind_runs_what_sql_published_for_that_kind(
    app: Umbel, budget: dict[str, int], task: str
) -> None:
    with working(app, **budget):
        assert publish_sql(app, task, "[]").get(timeout=DEADLINE) == "alive"


@pytest.mark.parametrize("full", ["io", "cpu"])
def test_what_sql_published_does_not_starve_behind_the_other_kinds_full_budget(
    app: Umbel, full: str
) -> None:
    gauge, go = Gauge(), Signal("the end")

    @app.task(name="coroutine")
    async def coroutine() -> None:
        with gauge:
            await go.seen()

    @app.task(name="thread")
    def thread() -> None:
        with gauge:
            go.wait()

    with working(app, io=1, cpu=1):
        (coroutine if full == "io" else thread).delay()
        until(lambda: gauge.now == 1, "the budget to be full")
        try:
            handle = publish_sql(app, "probe_in_thread" if full == "io" else "probe", "[]")
            assert handle.get(timeout=DEADLINE) == "alive"
        finally:
            go.set()


# --- a store that cannot be reached ----------------------------------------------------------


class Outage:
    """Heartbeats fail while it lasts; all other calls succeed."""

    def __init__(self) -> None:
        self.on = False
        self.faults = {"heartbeat": self._refuse, "register": self._refuse}

    async def _refuse(self, call: Call) -> Any:
        if self.on:
            raise Unavailable("cut off")
        return await call()


def test_a_worker_cut_off_for_longer_than_a_lease_stops_what_runs_and_begins_anew(
    memory: Umbel,
) -> None:
    heard, outage, runs, stopped = Heard(memory), Outage(), Gauge(), Signal("the stop")

    @memory.task(retry=0)
    async def work() -> str:
        with runs:
            if runs.entered == 1:
                try:
                    await asyncio.sleep(3600)
                finally:
                    stopped.set()
            return "second run"

    with working(memory, lease=1.5, build=with_faults(outage.faults)) as running:
        first = running.worker.incarnation
        handle = work.delay()
        until(lambda: runs.now == 1, "the first run")
        outage.on = True
        assert heard.wait(events.LeasesLost).running == 1
        stopped.wait()
        assert running.worker.incarnation != first
        outage.on = False
        assert handle.get(timeout=DEADLINE) == "second run"
        still_works(memory)
        [view] = ask(memory, lambda operations: operations.workers())
        assert view.incarnation == running.worker.incarnation
    assert heard.all(events.Unreachable, service="heartbeat")
    assert heard.all(events.Reachable, service="heartbeat")


def test_a_worker_cut_off_for_a_moment_goes_on_as_if_nothing_had_been(memory: Umbel) -> None:
    heard, outage, gauge, go = Heard(memory), Outage(), Gauge(), Signal("the end")

    @memory.task
    async def work() -> str:
        with gauge:
            await go.seen()
        return "undisturbed"

    with working(memory, lease=9.0, build=with_faults(outage.faults)) as running:
        first = running.worker.incarnation
        handle = work.delay()
        until(lambda: gauge.now == 1, "the run")
        outage.on = True
        heard.wait(events.Unreachable, service="heartbeat")
        outage.on = False
        heard.wait(events.Reachable, service="heartbeat")
        go.set()
        assert handle.get(timeout=DEADLINE) == "undisturbed"
        assert running.worker.incarnation == first
    assert gauge.entered == 1
    assert not heard.all(events.LeasesLost)


def test_a_worker_declared_dead_by_others_stops_what_runs_and_begins_anew(memory: Umbel) -> None:
    heard, runs = Heard(memory), Gauge()

    @memory.task(retry=0)
    async def work() -> str:
        with runs:
            if runs.entered == 1:
                await asyncio.sleep(3600)
            return "second run"

    with working(memory, lease=1.5) as running:
        first = running.worker.incarnation
        handle = work.delay()
        until(lambda: runs.now == 1, "the first run")
        ask_backend(memory, lambda roles: roles.registry.unregister(first))
        heard.wait(events.LeasesLost)
        assert handle.get(timeout=DEADLINE) == "second run"
        assert running.worker.incarnation != first
        still_works(memory)
    assert ended(handle.record())[-1] == "succeeded"


@pytest.mark.parametrize("kind", ["io", "cpu"])
def test_an_endless_run_of_an_earlier_incarnation_does_not_affect_the_next_run_of_its_job(
    memory: Umbel, kind: str
) -> None:
    """The worker has two runs of the job: the old one without a lease, the new one with a lease."""
    outage, heard, runs = Outage(), Heard(memory), Gauge()
    old_may_end, new_may_end = threading.Event(), Signal("the new run's end")
    old_ended = Signal("the old run's end")

    @memory.task(name="coroutine", retry=0)
    async def coroutine() -> str:
        with runs:
            if runs.entered > 1:
                await new_may_end.seen()
                return "new"
            try:
                await asyncio.sleep(3600)
            finally:
                with anyio.CancelScope(shield=True):
                    while not old_may_end.is_set():
                        await asyncio.sleep(0.01)
                old_ended.set()
            return "old"

    @memory.task(name="thread", retry=0)
    def thread() -> str:
        with runs:
            if runs.entered > 1:
                new_may_end.wait()
                return "new"
            old_may_end.wait()
            old_ended.set()
            return "old"

    with working(memory, lease=1.5, build=with_faults(outage.faults)) as running:
        handle = (coroutine if kind == "io" else thread).delay()
        until(lambda: runs.now == 1, "the first run")
        outage.on = True
        heard.wait(events.LeasesLost)
        outage.on = False
        until(lambda: runs.now == 2, "the job to be run again")
        assert running.worker.running == 2
        old_may_end.set()
        until(lambda: runs.now == 1, "the old run to end")
        still_works(memory)
        assert handle.state is State.RUNNING
        new_may_end.set()
        assert handle.get(timeout=DEADLINE) == "new"
        still_works(memory)
        assert running.worker.running == 0


@pytest.mark.parametrize("how", ["cut", "silence"])
def test_a_worker_whose_server_is_out_of_reach_begins_anew_and_works_on(
    places: Places, tmp_path: Path, proxy: Proxy, how: str
) -> None:
    direct = places.url("postgres", tmp_path)
    if POSTGRES not in direct or "127.0.0.1:5432" not in direct:
        pytest.skip("not run: the test server is not at 127.0.0.1:5432")
    runs = Gauge()
    namespace = f"t{fresh_id()}"
    here = Umbel(direct, namespace=namespace, deadline=20)
    there = Umbel(direct.replace(":5432", f":{proxy.port}"), namespace=namespace, deadline=20)
    heard = Heard(there)

    async def work() -> str:
        with runs:
            if runs.entered == 1:
                await asyncio.sleep(3600)
            return "second run"

    task = here.task(name="work", retry=0)(work)
    there.task(name="work", retry=0)(work)
    with_probes(here)
    with_probes(there)
    with working(there, lease=2.0):
        handle = task.delay()
        until(lambda: runs.now == 1, "the first run")
        getattr(proxy, how)()
        heard.wait(events.LeasesLost)
        until(lambda: runs.now == 0, "the run to be stopped")
        proxy.mend()
        assert handle.get(timeout=DEADLINE) == "second run"
        still_works(here)
    here.close()
    there.close()


def test_outcomes_are_buffered_while_the_store_is_unavailable(memory: Umbel) -> None:
    heard, away, gauge = Heard(memory), Signal("the outage"), Gauge()

    async def refuse(call: Call) -> Any:
        if away:
            raise Unavailable("away")
        return await call()

    @memory.task
    async def work(n: int) -> int:
        with gauge:
            return n

    faults = {"settle": refuse}
    with working(memory, build=with_faults(faults), io=50):
        away.set()
        handles = memory.publish_many([work.s(n) for n in range(20)])
        heard.wait(events.Unreachable, service="settler")
        del faults["settle"]
        assert [handle.get(timeout=DEADLINE) for handle in handles] == list(range(20))
    assert gauge.entered == 20
    heard.wait(events.Reachable, service="settler")


def test_a_settlement_that_happened_though_its_answer_was_lost_is_not_an_error(
    memory: Umbel,
) -> None:
    lost, gauge = Signal("the loss"), Gauge()

    async def lose_the_answer(call: Call) -> Any:
        answer = await call()
        if not lost:
            lost.set()
            raise Unavailable("the answer is lost")
        return answer

    @memory.task
    async def work() -> str:
        with gauge:
            return "once"

    with working(memory, build=with_faults({"settle": lose_the_answer})):
        handle = work.delay()
        assert handle.get(timeout=DEADLINE) == "once"
        still_works(memory)
    assert (gauge.entered, ended(handle.record())) == (1, ["succeeded"])


def test_a_fetch_whose_answer_was_lost_loses_no_job(memory: Umbel) -> None:
    lost, gauge = Signal("the loss"), Gauge()

    async def lose_the_answer(call: Call) -> Any:
        answer = await call()
        if answer and not lost:
            lost.set()
            raise Unavailable("the answer is lost")
        return answer

    @memory.task
    async def work() -> str:
        with gauge:
            return "once"

    with working(memory, lease=1.5, build=with_faults({"fetch": lose_the_answer})):
        handle = work.delay()
        assert handle.get(timeout=DEADLINE) == "once"
    record = handle.record()
    assert (gauge.entered, record.deaths, record.attempt) == (1, 0, 1)


@pytest.mark.parametrize(
    "method", ["fetch", "settle", "heartbeat", "extend", "read", "record_progress"]
)
def test_an_unexpected_error_of_the_store_ends_no_loop(memory: Umbel, method: str) -> None:
    heard, failed = Heard(memory), Signal("the failure")

    async def fail_once(call: Call) -> Any:
        if not failed:
            failed.set()
            raise ZeroDivisionError("a bug in an adapter")
        return await call()

    @memory.task
    async def work() -> str:
        current.progress(1)
        return "done"

    with working(memory, lease=1.5, build=with_faults({method: fail_once})):
        handle = work.delay()
        if method == "settle":  # an outcome the store objects to is recorded as a failure
            finished(handle)
        else:
            assert handle.get(timeout=DEADLINE) == "done"
        still_works(memory)
    assert failed or method == "record_progress"
    assert not heard.all(events.LeasesLost)


# --- the watchdog ----------------------------------------------------------------------------


def test_a_fetch_that_hangs_while_work_waits_is_given_up(memory: Umbel) -> None:
    heard, hung = Heard(memory), Signal("the fetch to hang")

    async def hang_once(call: Call) -> Any:
        if not hung:
            hung.set()
            await asyncio.sleep(3600)
        return await call()

    faults = with_faults({"fetch": hang_once}, Mortal)
    with working(memory, lease=1.5, stall=0.2, build=faults) as running:
        hung.wait()
        handle = memory.registry.find("probe").delay()
        assert heard.wait(events.WorkerStalled).action == "rebuilds its connection"
        assert handle.get(timeout=DEADLINE) == "alive"
        still_works(memory)
        assert not running.worker.died  # type: ignore[attr-defined]


def test_a_worker_whose_fetch_hangs_whatever_it_does_ends_itself(memory: Umbel) -> None:
    heard, release = Heard(memory), Signal("the release")

    async def hang(call: Call) -> Any:
        await release.seen()
        return await call()

    faults = with_faults({"fetch": hang}, Mortal)
    with working(memory, lease=1.5, stall=0.2, build=faults) as running:
        memory.registry.find("probe").delay()
        heard.wait(events.WorkerStalled, action="rebuilds its connection")
        heard.wait(events.WorkerStalled, action="ends itself")
        running.worker.died.wait()  # type: ignore[attr-defined]
        release.set()


def test_a_stall_long_after_another_was_mended_is_mended_too(memory: Umbel) -> None:
    heard, hang_now = Heard(memory), threading.Event()
    hang_now.set()

    async def hang_when_told(call: Call) -> Any:
        if hang_now.is_set():
            hang_now.clear()
            await asyncio.sleep(3600)
        return await call()

    faults = with_faults({"fetch": hang_when_told}, Mortal)
    with working(memory, lease=1.5, stall=0.2, build=faults) as running:
        until(lambda: not hang_now.is_set(), "the first fetch to hang")
        first = memory.registry.find("probe").delay()
        heard.wait(events.WorkerStalled)
        first.get(timeout=DEADLINE)
        fetches = running.worker.fetches()
        until(lambda: running.worker.fetches() > fetches + 6, "fetching to go on for a while")
        hang_now.set()
        until(lambda: not hang_now.is_set(), "another fetch to hang")
        memory.registry.find("probe").delay()
        assert heard.wait(events.WorkerStalled, 2).action == "rebuilds its connection"
        assert not running.worker.died  # type: ignore[attr-defined]


def test_an_idle_worker_is_not_stalled(memory: Umbel) -> None:
    heard = Heard(memory)
    with working(memory, lease=0.9, stall=0.1, build=with_faults({}, Mortal)):
        beats_pass(memory, 10)
    assert not heard.all(events.WorkerStalled)


@pytest.mark.parametrize("budget", [{"cpu": 0}, {"io": 0}])
def test_a_worker_with_nothing_to_fetch_but_what_it_cannot_run_is_not_stalled(
    app: Umbel, budget: dict[str, int]
) -> None:
    heard = Heard(app)
    asyncio.run(app.backend.migrate())
    insert_job(app, kind="", task="probe_in_thread" if "cpu" in budget else "probe")
    insert_job(app, kind="cpu" if "cpu" in budget else "io", task="probe")
    with working(app, lease=0.9, stall=0.1, build=with_faults({}, Mortal), **budget):
        beats_pass(app, 10)
    assert not heard.all(events.WorkerStalled)


def test_a_full_worker_is_not_stalled(memory: Umbel) -> None:
    heard, gauge, go = Heard(memory), Gauge(), Signal("the end")

    @memory.task
    async def work() -> None:
        with gauge:
            await go.seen()

    count_volatile = with_faults({}, Mortal)
    with working(memory, io=1, cpu=0, lease=0.9, stall=0.1, build=count_volatile):
        handles = [work.delay() for _ in range(3)]
        until(lambda: gauge.now == 1, "the budget to be full")
        beats_pass(memory, 10)
        go.set()
        for handle in handles:
            handle.get(timeout=DEADLINE)
    assert not heard.all(events.WorkerStalled)


def test_a_cancellation_made_during_the_first_heartbeat_is_noticed(memory: Umbel) -> None:
    """The job is cancelled after the first heartbeat has read, and before it waits for changes."""
    read, go, runs = Signal("the first beat"), Signal("the cancellation"), Signal("the start")
    looks = 0

    async def hold(call: Call) -> Any:
        nonlocal looks
        state, looks = await call(), looks + 1
        if looks == 2:  # the first is before anything is fetched
            read.set()
            await go.seen()
        return state

    @memory.task
    async def work() -> None:
        runs.set()
        await asyncio.sleep(3600)

    with working(memory, lease=3600, build=with_faults({"read": hold})):
        read.wait()
        handle = work.delay()
        runs.wait()
        handle.cancel()
        go.set()
        assert finished(handle).state is State.CANCELLED


def test_a_worker_that_cannot_reach_its_store_at_first_says_so(tmp_path: Path) -> None:
    app = Umbel("postgresql://postgres@127.0.0.1:1/nowhere")
    with pytest.raises(Unavailable):
        Running(app, WorkerOptions(queues=("default",), name="worker"))
