"""Durable steps run once for each job, however its runs end."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import psutil
import psycopg
import pytest
import sqlalchemy as sa
import trio
from running import (
    DEADLINE,
    Heard,
    Places,
    Signal,
    ask,
    ended,
    execute,
    finished,
    until,
    with_faults,
    working,
)
from sqlalchemy.orm import Session

from integration.conftest import Place, in_child
from umbel import Handle, Retry, State, Umbel, step
from umbel.backends import Changes
from umbel.errors import ConfigurationError, StepsChanged, Unavailable
from umbel.messages import Step, fresh_id
from umbel.telemetry import events

NO_RETRY = Retry(0)
AT_ONCE = Retry(5, first=0.01, factor=1, cap=0.01)


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
def simple(places: Places, tmp_path: Path) -> Iterator[Umbel]:
    """The application of tests that do not depend on the store."""
    with places.app("memory", tmp_path) as app:
        yield app


@pytest.fixture(params=["file", "postgres"])
def database(request: pytest.FixtureRequest, places: Places, tmp_path: Path) -> Iterator[Umbel]:
    """A database for callers' connections, with a table of the test."""
    with places.app(request.param, tmp_path) as app:
        # Not in the driver's own transaction: the table is there before any worker.
        run_sql(app, "create table if not exists effect (job text, what text)")
        yield app


def connect(app: Umbel) -> Any:
    url = app.settings.broker
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///").partition("?")[0]
        connection: Any = sqlite3.connect(path, timeout=DEADLINE)
        return connection
    return psycopg.connect(url.partition("?")[0])


def run_sql(app: Umbel, statement: str) -> list[tuple[Any, ...]]:
    with closing(connect(app)) as connection:
        cursor = connection.execute(statement)
        rows: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
        connection.commit()
        return rows


def effects(app: Umbel, job: str) -> list[str]:
    return [row[0] for row in run_sql(app, f"select what from effect where job = '{job}'")]


def insert(app: Umbel) -> str:
    sign = "?" if app.settings.broker.startswith("sqlite") else "%s"
    return f"insert into effect (job, what) values ({sign}, {sign})"


def steps_of(app: Umbel, handle: Handle[Any]) -> list[Step]:
    return ask(app, lambda operations: operations.steps(handle.id))


class Calls:
    """Counts calls by name."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def __call__(self, what: Any) -> Any:
        self.made.append(what)
        return what


class Broken(Exception):
    """The error with which tasks fail here."""


# --- once --------------------------------------------------------------------------------------


def test_steps_of_a_def_task_run_once_however_often_it_is_retried(app: Umbel) -> None:
    calls = Calls()

    @app.task(retry=AT_ONCE)
    def work() -> list[int]:
        first = step(calls, 1)
        second = step(calls, 2)
        if len(calls.made) < 5:
            calls("run")
            raise Broken
        return [first, second]

    with working(app):
        handle = work.delay()
        assert handle.get(timeout=DEADLINE) == [1, 2]
    assert calls.made == [1, 2, "run", "run", "run"]
    assert [(one.number, one.name) for one in steps_of(app, handle)] == [
        (1, "Calls"),
        (2, "Calls#2"),
    ]


def test_steps_of_an_async_task_run_once_however_often_it_is_retried(app: Umbel) -> None:
    calls = Calls()

    async def fetch(n: int) -> int:
        await asyncio.sleep(0)
        calls(n)
        return n

    @app.task(retry=AT_ONCE)
    async def work() -> list[int]:
        found = [await step(fetch, n) for n in range(3)]
        if len(calls.made) < 5:
            calls("run")
            raise Broken
        return found

    with working(app):
        handle = work.delay()
        assert handle.get(timeout=DEADLINE) == [0, 1, 2]
    assert calls.made == [0, 1, 2, "run", "run"]
    assert [one.name.rpartition(".")[2] for one in steps_of(app, handle)] == [
        "fetch",
        "fetch#2",
        "fetch#3",
    ]


def test_a_step_that_fails_keeps_nothing_and_its_exception_goes_up(app: Umbel) -> None:
    calls = Calls()

    def fails_twice() -> str:
        if len(calls.made) < 2:
            calls("failed")
            raise Broken("not yet")
        return "done"

    @app.task(retry=AT_ONCE)
    def work() -> str:
        step(calls, "before")
        return step(fails_twice)

    with working(app):
        handle = work.delay()
        assert handle.get(timeout=DEADLINE) == "done"
    assert calls.made == ["before", "failed"]  # of which one was kept
    record = finished(handle)
    assert record.attempts[0].failure is not None
    assert record.attempts[0].failure.message == "not yet"


def test_steps_survive_an_interruption_and_the_worker_that_comes_after(app: Umbel) -> None:
    calls, there = Calls(), Signal("the second step")

    async def waits() -> str:
        if not there:
            there.set()
            await asyncio.Event().wait()
        return "waited"

    @app.task(interruptible=True)
    async def work() -> list[str]:
        return [await step.threaded(calls, "first"), await step(waits)]

    with working(app):
        handle = work.delay()
        there.wait()
    with working(app):
        assert handle.get(timeout=DEADLINE) == ["first", "waited"]
    assert calls.made == ["first"]
    assert ended(finished(handle)) == ["interrupted", "succeeded"]


def test_a_step_in_progress_is_not_stored_when_its_run_is_interrupted(simple: Umbel) -> None:
    calls, there = Calls(), Signal("the step")

    async def waits() -> int:
        calls("began")
        if not there:
            there.set()
            await asyncio.Event().wait()
        return len(calls.made)

    @simple.task(interruptible=True)
    async def work() -> int:
        return await step(waits)

    with working(simple):
        handle = work.delay()
        there.wait()
    assert steps_of(simple, handle) == []
    with working(simple):
        assert handle.get(timeout=DEADLINE) == 2


def test_a_replayed_job_has_its_steps_unless_it_begins_from_scratch(app: Umbel) -> None:
    calls, fails = Calls(), Signal()

    @app.task(retry=NO_RETRY)
    def work() -> int:
        found = step(calls, 7)
        if not fails:
            raise Broken
        return found

    def retry(changes: Changes = Changes()) -> None:  # noqa: B008
        ask(app, lambda operations: operations.retry([handle.id], changes))

    with working(app):
        handle = work.delay()
        assert finished(handle).state is State.BURIED
        retry()
        until(lambda: len(finished(handle).attempts) == 2, "the second run")
        assert calls.made == [7]
        fails.set()
        retry(Changes(from_scratch=True))
        until(lambda: finished(handle).state is State.SUCCEEDED, "the third run")
    assert calls.made == [7, 7]


def test_reading_costs_nothing_on_a_first_run_and_one_round_trip_later(simple: Umbel) -> None:
    asked, passes = Calls(), Signal()

    async def counted(read: Callable[[], Awaitable[Any]]) -> Any:
        asked("all")
        return await read()

    @simple.task(retry=AT_ONCE)
    async def work() -> int:
        found = await asyncio.gather(*(step.threaded(int, n) for n in range(5)))
        if not passes:
            passes.set()
            raise Broken
        return sum(found)

    @simple.task
    def without() -> None: ...

    with working(simple, build=with_faults({"steps": counted})):
        assert without.delay().get(timeout=DEADLINE) is None
        handle = work.delay()
        assert handle.get(timeout=DEADLINE) == 10
    assert asked.made == ["all"]


# --- the order of steps --------------------------------------------------------------------------


def test_a_step_of_another_name_at_a_stored_position_buries_the_job_immediately(app: Umbel) -> None:
    calls, changed = Calls(), Signal()

    @app.task(retry=AT_ONCE)
    def work() -> None:
        step.named("load")(calls, "load")
        if changed:
            step.named("check")(calls, "check")
        step.named("save")(calls, "save")
        if not changed:
            changed.set()
            raise Broken

    with working(app):
        handle = work.delay()
        with pytest.raises(StepsChanged) as told:
            handle.get(timeout=DEADLINE)
    for part in ("step 2", "'save'", "'check'", f"umbel jobs retry {handle.id} --from-scratch"):
        assert part in str(told.value)
    assert calls.made == ["load", "save"]
    assert ended(finished(handle)) == ["retry", "failed"]


@pytest.mark.parametrize("how", ["caught", "in a group", "in a thread"])
def test_changed_steps_are_final_whatever_the_task_makes_of_the_error(
    simple: Umbel, how: str
) -> None:
    calls, changed = Calls(), Signal()

    @simple.task(name="a", retry=AT_ONCE)
    async def in_loop() -> str:
        await step.named("new" if changed else "old").threaded(calls, "one")
        if not changed:
            changed.set()
            raise Broken
        return "went on"

    @simple.task(name="b", retry=AT_ONCE)
    async def catches() -> str:
        try:
            return await in_loop()
        except StepsChanged:
            await asyncio.sleep(0)
        return "went on"

    @simple.task(name="c", retry=AT_ONCE)
    async def grouped() -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(in_loop())
        return "went on"

    @simple.task(name="d", retry=AT_ONCE)
    def threaded() -> str:
        step.named("new" if changed else "old")(calls, "one")
        if not changed:
            changed.set()
            raise Broken
        return "went on"

    task: Any = {"caught": catches, "in a group": grouped, "in a thread": threaded}[how]
    with working(simple), pytest.raises(StepsChanged):
        task.delay().get(timeout=DEADLINE)
    assert calls.made == ["one"]


def test_steps_that_run_at_the_same_time_are_distinguished_by_the_order_of_their_calls(
    app: Umbel,
) -> None:
    calls, gate, again = Calls(), Signal("the others"), Signal()

    async def fetch(n: int) -> int:
        if n == 0:  # the first that is called is the last to end
            await gate.seen()
            if not again:
                raise Broken
        calls(n)
        if len(calls.made) == 4:
            gate.set()
        return n

    @app.task(retry=AT_ONCE)
    async def work() -> list[int]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(step(fetch, n)) for n in range(5)]
        except* Broken:
            again.set()
            raise Broken from None
        return [task.result() for task in tasks]

    with working(app):
        handle = work.delay()
        assert handle.get(timeout=DEADLINE) == [0, 1, 2, 3, 4]
    assert sorted(calls.made) == [0, 1, 2, 3, 4], "each ran once"
    assert [one.number for one in steps_of(app, handle)] == [1, 2, 3, 4, 5]


def test_a_step_inside_a_step_is_refused_with_the_remedy(simple: Umbel) -> None:
    def inner() -> int:
        return 1

    def outer() -> int:
        return step(inner)

    @simple.task(retry=NO_RETRY)
    def work() -> int:
        return step(outer)

    told = r"inside step .*outer.*two steps one after"
    with working(simple), pytest.raises(ConfigurationError, match=told):
        work.delay().get(timeout=DEADLINE)


# --- results -------------------------------------------------------------------------------------


@dataclass
class Report:
    title: str
    pages: list[int]


def test_results_come_back_as_their_annotations_say_in_every_run(app: Umbel) -> None:
    seen: list[list[Any]] = []

    def annotated() -> Report:
        return Report("t", [1, 2])

    def plain():  # type: ignore[no-untyped-def]
        return Report("t", [1, 2])

    def nothing() -> None: ...

    @app.task(retry=AT_ONCE)
    def work() -> None:
        seen.append(
            [step(annotated), step(plain), step(nothing), step(functools.partial(sum, [1]))]
        )  # type: ignore[no-untyped-call]
        if len(seen) < 2:
            raise Broken

    with working(app):
        work.delay().get(timeout=DEADLINE)
    as_it_was = [Report("t", [1, 2]), {"title": "t", "pages": [1, 2]}, None, 1]
    assert seen == [as_it_was, as_it_was]


def test_a_result_that_cannot_be_stored_is_an_error_that_names_the_step(simple: Umbel) -> None:
    calls = Calls()

    def opens_a_file() -> object:
        return calls(object())

    def too_much() -> str:
        return calls("x" * 2_000_000)  # type: ignore[no-any-return]

    @simple.task(retry=AT_ONCE)
    def work(big: bool) -> None:
        step(too_much if big else opens_a_file)

    with working(simple):
        for big, name in ((False, "opens_a_file"), (True, "too_much")):
            calls.made.clear()
            with pytest.raises(Exception, match=rf"result of step .*{name}"):
                work.delay(big).get(timeout=DEADLINE)
            assert len(calls.made) == 1, "it would return the same again"


def test_a_stored_result_that_no_longer_fits_is_a_changed_step(simple: Umbel) -> None:
    changed = Signal()

    def number() -> int:
        return 1

    def report() -> Report:
        return Report("t", [])

    @simple.task(retry=AT_ONCE)
    def work() -> None:
        step.named("make")(report if changed else number)  # type: ignore[arg-type]
        if not changed:
            changed.set()
            raise Broken

    with working(simple), pytest.raises(StepsChanged, match=r"'make'.*from-scratch"):
        work.delay().get(timeout=DEADLINE)


# --- stops and faults ----------------------------------------------------------------------------


def test_a_step_is_a_checkpoint_for_a_thread(simple: Umbel) -> None:
    calls, there, go_on = Calls(), Signal("the task"), Signal("the test")

    @simple.task(retry=NO_RETRY)
    def work() -> None:
        there.set()
        try:
            go_on.wait()
        except BaseException:
            calls("swallowed what was raised in it")
        step(calls, "must not run")

    with working(simple) as running:
        handle = work.delay()
        there.wait()
        handle.cancel()
        heard = Heard(simple)
        until(lambda: calls.made, "the stop to be raised")
        assert heard
        record = finished(handle)
    assert running
    assert record.state is State.CANCELLED
    assert calls.made == ["swallowed what was raised in it"]


def test_a_step_is_a_checkpoint_for_a_coroutine_that_swallows_cancellation(simple: Umbel) -> None:
    calls, there = Calls(), Signal("the task")

    @simple.task(timeout=0.05, retry=NO_RETRY)
    async def work() -> None:
        there.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            calls("swallowed")
        await step.threaded(calls, "must not run")

    with working(simple), pytest.raises(TimeoutError):
        work.delay().get(timeout=DEADLINE)
    assert calls.made == ["swallowed"]


def test_a_worker_that_lost_its_lease_keeps_nothing_and_its_run_ends(database: Umbel) -> None:
    calls, there, taken = Calls(), Signal("the step"), Signal("the job to be taken")

    def slow(what: str) -> str:
        if not there:
            there.set()
            taken.wait()
        return calls(what)  # type: ignore[no-any-return]

    @database.task
    def work() -> list[str]:
        return [step(slow, "first"), step(slow, "second")]

    heard = Heard(database)
    with working(database, lease=60) as running:
        # The heart would end the run when it hears of it. Its next beat is far away, then.
        until(lambda: running.worker.heartbeat_age is not None, "the first heartbeat")
        handle = work.delay()
        there.wait()
        execute(database, TAKEN, handle.id)
        taken.set()
        heard.wait(events.OutcomeRefused, job=handle.id)
    assert calls.made == ["first"], "the run went on with a step that was refused"
    assert steps_of(database, handle) == []


TAKEN = "update $schema.job set fence = fence + 1 where id = ?"


@pytest.mark.parametrize("kind", ["io", "cpu"])
def test_a_store_that_is_away_for_a_while_delays_a_step_and_repeats_nothing(
    simple: Umbel, kind: str
) -> None:
    calls, tries = Calls(), Calls()

    async def away(keep: Callable[[], Awaitable[Any]]) -> Any:
        if len(tries.made) < 3:
            tries("keep")
            raise Unavailable("away")
        return await keep()

    @simple.task(name="io", retry=NO_RETRY)
    async def in_loop() -> int:
        return await step.threaded(calls, 1)  # type: ignore[no-any-return]

    @simple.task(name="cpu", retry=NO_RETRY)
    def in_thread() -> int:
        return step(calls, 1)  # type: ignore[no-any-return]

    task: Any = in_loop if kind == "io" else in_thread
    with working(simple, build=with_faults({"keep": away})):
        assert task.delay().get(timeout=DEADLINE) == 1
    assert calls.made == [1]
    assert len(tries.made) == 3


def test_a_completed_step_is_stored_although_its_run_is_interrupted_meanwhile(
    simple: Umbel,
) -> None:
    calls, writing, go_on = Calls(), Signal("the write"), Signal("the stop")

    async def held_up(keep: Callable[[], Awaitable[Any]]) -> Any:
        writing.set()
        await go_on.seen()
        return await keep()

    @simple.task(interruptible=True)
    async def work() -> int:
        try:
            return await step.threaded(calls, 1)  # type: ignore[no-any-return]
        finally:
            calls("end")

    with working(simple, build=with_faults({"keep": held_up})) as running:
        handle = work.delay()
        writing.wait()
        running.stop()
        threading.Timer(0.2, go_on.set).start()
    with working(simple):
        assert handle.get(timeout=DEADLINE) == 1
    assert calls.made == [1, "end", "end"]


# --- other loops ---------------------------------------------------------------------------------


def test_steps_of_a_trio_task(app: Umbel) -> None:
    calls = Calls()

    async def fetch(n: int) -> int:
        await trio.sleep(0)
        calls(n)
        return n

    @app.task(loop="trio", retry=AT_ONCE)
    async def work() -> list[int]:
        found = [await step(fetch, 1), await step.threaded(calls, 2)]
        if len(calls.made) < 3:
            calls("run")
            raise Broken
        return found

    with working(app):
        assert work.delay().get(timeout=DEADLINE) == [1, 2]
    assert calls.made == [1, 2, "run"]


def test_steps_in_an_event_loop_of_a_def_tasks_own(simple: Umbel) -> None:
    calls = Calls()

    async def fetch(n: int) -> int:
        await anyio.sleep(0)
        calls(n)
        return n

    @simple.task(retry=AT_ONCE)
    def work() -> list[int]:
        async def main() -> list[int]:
            return list(await asyncio.gather(step(fetch, 1), step(fetch, 2)))

        found = asyncio.run(main())
        if len(calls.made) < 3:
            calls("run")
            raise Broken
        return found

    with working(simple):
        assert work.delay().get(timeout=DEADLINE) == [1, 2]
    assert calls.made == [1, 2, "run"]


def test_a_coroutine_in_a_def_task_is_refused_with_the_remedy(simple: Umbel) -> None:
    async def fetch() -> int:
        return 1

    @simple.task(retry=NO_RETRY)
    def work() -> None:
        step(fetch)

    with working(simple), pytest.raises(ConfigurationError, match="give a def function"):
        work.delay().get(timeout=DEADLINE)


def test_outside_a_job_a_step_is_a_plain_call() -> None:
    async def fetch(n: int) -> int:
        return n

    async def main() -> list[int]:
        return [await step(fetch, 1), await step.threaded(int, 2), step(int, 3)]

    assert step(int, "4") == 4
    assert asyncio.run(main()) == [1, 2, 3]
    with pytest.raises(ConfigurationError, match=r"no job runs here.*step\.using"):
        step.transaction(lambda connection: connection)
    assert step.using("connection").transaction(lambda connection: connection) == "connection"


# --- transactions --------------------------------------------------------------------------------


def test_effect_and_step_of_a_def_task_are_committed_together(database: Umbel) -> None:
    statement, runs = insert(database), Calls()

    def save(connection: Any, job: str, what: str, fails: bool = False) -> str:
        connection.execute(statement, (job, what))
        if fails:
            raise Broken
        return what

    @database.task(retry=AT_ONCE)
    def work(job: str) -> list[str]:
        runs("run")
        return [
            step.transaction(save, job, "one"),
            step.transaction(save, job, "two", fails=len(runs.made) < 3),
        ]

    job = fresh_id()
    with working(database):
        assert work.delay(job).get(timeout=DEADLINE) == ["one", "two"]
    assert effects(database, job) == ["one", "two"]
    assert len(runs.made) == 3


def test_effect_and_step_of_an_async_task_are_committed_together(database: Umbel) -> None:
    statement, runs = insert(database), Calls()

    async def save(connection: Any, job: str, what: str) -> str:
        done = connection.execute(statement, (job, what))
        if not isinstance(connection, sqlite3.Connection):
            await done
        if len(runs.made) < 3 and what == "two":
            raise Broken
        return what

    def save_in_thread(connection: Any, job: str) -> bool:
        connection.execute(statement, (job, "three"))
        return threading.current_thread() is threading.main_thread()

    @database.task(retry=AT_ONCE)
    async def work(job: str) -> list[Any]:
        runs("run")
        return [
            await step.transaction(save, job, "one"),
            await step.transaction(save, job, "two"),
            await step.transaction(save_in_thread, job),  # type: ignore[misc]
        ]

    job = fresh_id()
    with working(database):
        assert work.delay(job).get(timeout=DEADLINE) == ["one", "two", False]
    assert effects(database, job) == ["one", "two", "three"]
    assert len(runs.made) == 3


@pytest.mark.parametrize("how", ["driver", "sqlalchemy", "session"])
def test_a_step_in_the_callers_own_transaction_shares_its_fate(database: Umbel, how: str) -> None:
    url = database.settings.broker.partition("?")[0]
    url = url.replace("postgresql://", "postgresql+psycopg://")
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    runs = Calls()

    def save(connection: Any, job: str, what: str) -> str:
        if how == "driver":
            connection.execute(insert(database), (job, what))
        else:
            text = sa.text("insert into effect (job, what) values (:job, :what)")
            connection.execute(text, {"job": job, "what": what})
        return what

    def opened() -> Any:
        if how == "driver":
            return closing(connect(database))
        return engine.connect() if how == "sqlalchemy" else Session(engine)

    @database.task(retry=AT_ONCE)
    def work(job: str) -> str:
        runs("run")
        with opened() as connection:
            found = step.using(connection).transaction(save, job, "one")
            if len(runs.made) == 1:
                connection.rollback()
                raise Broken("rolled back")
            connection.commit()
        if len(runs.made) == 2:
            raise Broken("after the commit")
        return str(found)

    job = fresh_id()
    with working(database):
        handle = work.delay(job)
        assert handle.get(timeout=DEADLINE) == "one"
    assert effects(database, job) == ["one"]
    assert [one.name.rpartition(".")[2] for one in steps_of(database, handle)] == ["save"]
    assert len(runs.made) == 3
    engine.dispose()


def test_a_connection_without_a_transaction_is_refused_before_anything_happens(
    database: Umbel,
) -> None:
    calls = Calls()

    @database.task(retry=NO_RETRY)
    def work() -> None:
        with closing(connect(database)) as connection:
            if isinstance(connection, sqlite3.Connection):
                connection.isolation_level = None
            else:
                connection.autocommit = True
            step.using(connection).transaction(calls)

    with working(database), pytest.raises(ConfigurationError, match="no transaction open"):
        work.delay().get(timeout=DEADLINE)
    assert calls.made == []


def test_a_lost_lease_takes_the_effect_back(database: Umbel) -> None:
    there, statement = Signal("the effect"), insert(database)
    jobs: list[str] = []
    schema = database.settings.broker.rpartition("schema=")[2]
    taken = TAKEN.replace("$schema.", "") if "sqlite" in schema else TAKEN
    taken = taken.replace("$schema", f'"{schema}"')
    if "sqlite" not in schema:
        taken = taken.replace("?", "%s")

    def save(connection: Any) -> None:
        if not there:
            until(lambda: jobs, "the job's id")
            connection.execute(statement, (jobs[0], "lost"))
            # In the same transaction, for nobody else can write to a file meanwhile.
            connection.execute(taken, (jobs[0],))
            there.set()

    @database.task
    def work() -> None:
        step.transaction(save)
        raise AssertionError("the run went on")

    with working(database, lease=60):
        jobs.append(work.delay().id)
        there.wait()
    assert effects(database, jobs[0]) == []


def test_a_store_without_transactions_says_what_to_do_instead(simple: Umbel) -> None:
    from umbel.backends.redis.backend import RedisBackend

    site = RedisBackend.__new__(RedisBackend)
    with pytest.raises(ConfigurationError, match=r"Redis.*PostgreSQL and SQLite.*Use step\("):
        site.transactions().run(lambda _: None)  # type: ignore[arg-type,return-value]


def test_a_database_in_memory_lends_its_connection_to_plain_functions(simple: Umbel) -> None:
    def count(connection: sqlite3.Connection) -> int:
        connection.execute("create table if not exists mine (n)")
        connection.execute("insert into mine values (1)")
        found: int = connection.execute("select count(*) from mine").fetchone()[0]
        return found

    async def acount(connection: sqlite3.Connection) -> int:
        return count(connection)

    @simple.task(retry=NO_RETRY)
    async def work(coroutine: bool) -> int:
        if coroutine:
            return await step.transaction(acount)
        return await step.transaction(count)  # type: ignore[misc,no-any-return]

    with working(simple):
        assert work.delay(False).get(timeout=DEADLINE) == 1
        with pytest.raises(ConfigurationError, match="give a def function, or use a file"):
            work.delay(True).get(timeout=DEADLINE)


# --- publishing ----------------------------------------------------------------------------------


def test_what_a_repeated_step_publishes_is_published_once(app: Umbel) -> None:
    @app.task(name="child")
    async def child(n: int) -> int:
        return n

    runs = Calls()

    def publishes() -> list[str]:
        runs("run")
        ids = [child.delay(1).id, *(one.id for one in app.publish_many([child.s(2), child.s(3)]))]
        if len(runs.made) < 3:
            raise Broken
        return ids

    @app.task(retry=AT_ONCE)
    def work() -> list[str]:
        return step(publishes)

    with working(app):
        ids = work.delay().get(timeout=DEADLINE)
        assert [app.handle(one).get(timeout=DEADLINE) for one in ids] == [1, 2, 3]
    records = ask(app, lambda operations: operations.jobs(_everything()))
    assert sorted(one.id for one in records if one.task == "child") == sorted(ids)


def test_what_a_transactional_step_publishes_is_part_of_its_transaction(database: Umbel) -> None:
    @database.task(name="child")
    async def child(n: int) -> int:
        return n

    runs = Calls()

    def publishes(connection: Any) -> str:
        handle = child.delay(len(runs.made))
        if not runs.made:
            runs("run")
            raise Broken(handle.id)
        return handle.id

    @database.task(retry=AT_ONCE)
    def work() -> str:
        return step.transaction(publishes)

    with working(database):
        assert database.handle(work.delay().get(timeout=DEADLINE)).get(timeout=DEADLINE) == 1


def _everything() -> Any:
    from umbel.backends import JobFilter

    return JobFilter(limit=1000)


@pytest.mark.parametrize("kind", ["io", "cpu"])
def test_held_publishing_happens_exactly_when_the_task_succeeds(app: Umbel, kind: str) -> None:
    @app.task(name="child")
    async def child(n: int) -> int:
        return n

    seen: list[list[str]] = []

    @app.task(name="cpu", interruptible=True, publishing="held", retry=AT_ONCE)
    def in_thread() -> None:
        many = app.publish_many([child.s(2), child.s(3)])
        seen.append([child.delay(1).id, *(one.id for one in many)])
        if len(seen) < 3:
            raise Broken

    @app.task(name="io", interruptible=True, publishing="held", retry=AT_ONCE)
    async def in_loop() -> None:
        many = await app.apublish_many([child.s(2), child.s(3)])
        seen.append([(await child.adelay(1)).id, *(one.id for one in many)])
        if len(seen) < 3:
            raise Broken

    heard, task = Heard(app), in_thread if kind == "cpu" else in_loop
    with working(app):
        task.delay().get(timeout=DEADLINE)
        results = [app.handle(one).get(timeout=DEADLINE) for one in seen[-1]]
        assert sorted(results) == [1, 2, 3]
    records = ask(app, lambda operations: operations.jobs(_everything()))
    assert sorted(one.id for one in records if one.task == "child") == sorted(seen[-1])
    assert heard.all(events.PublishNotHeld) == []


def test_an_interruptible_task_that_publishes_is_warned_of_once(simple: Umbel) -> None:
    heard = Heard(simple)

    @simple.task(name="child")
    async def child() -> None: ...

    @simple.task(name="careless", interruptible=True)
    def careless() -> None:
        child.delay()
        child.delay()

    @simple.task(name="in_a_step", interruptible=True)
    def in_a_step() -> str:
        return step(lambda: child.delay().id)

    @simple.task(name="with_an_id", interruptible=True)
    def with_an_id() -> None:
        child.options(id=fresh_id()).delay()

    @simple.task(name="harmless", interruptible=True, publishing="now")
    def harmless() -> None:
        child.delay()

    @simple.task(name="short")
    def short() -> None:
        child.delay()

    with working(simple):
        for task in (careless, in_a_step, with_an_id, harmless, short, careless):
            task.delay().get(timeout=DEADLINE)  # type: ignore[attr-defined]
    assert [(one.task, one.calls) for one in heard.all(events.PublishNotHeld)] == [
        ("careless", "child")
    ]


@pytest.mark.parametrize("where", ["file", "memory"])
def test_successive_transactions_do_not_starve_other_writers(tmp_path: Path, where: str) -> None:
    from umbel.backends.sqlite.database import Database, SqliteFile
    from umbel.backends.sqlite.step_transactions import SqliteTransactions

    file = SqliteFile(
        ":memory:" if where == "memory" else str(tmp_path / "umbel.db"), synchronous="off"
    )
    transactions, over, times = SqliteTransactions(file), Signal(), Calls()

    def holds(connection: Any) -> Any:
        times("begun")
        time.sleep(0.01)  # the file is locked for almost all of the time
        raise Broken

    def one_after_the_other() -> None:
        while not over:
            with suppress(Broken):
                transactions.run(holds)

    async def beats() -> list[int]:
        database, waited = Database(file), []
        try:
            for _ in range(10):
                until(lambda: times.made, "a transaction")
                before = len(times.made)
                await database.run(
                    lambda connection: connection.execute(
                        "insert into section (namespace, name, revision) values ('t', '', 1)"
                        " on conflict do update set revision = revision + 1"
                    )
                )
                waited.append(len(times.made) - before)
        finally:
            await database.close()
        return waited

    thread = threading.Thread(target=one_after_the_other)
    thread.start()
    try:
        waited = asyncio.run(beats())
    finally:
        over.set()
        thread.join()
        transactions.close()
    assert sum(waited) < 50, f"transactions that went first: {waited}"


def test_a_fork_leaves_no_connection_of_steps_in_two_processes(sqlite: Place) -> None:
    from umbel.backends.sqlite.database import SqliteFile
    from umbel.backends.sqlite.step_transactions import SqliteTransactions

    transactions = SqliteTransactions(SqliteFile(sqlite.path))

    def fails(connection: Any) -> Any:
        raise Broken

    def count_open_files() -> int:
        """Return how often this process has the database open."""
        return sum(open_file.path == sqlite.path for open_file in psutil.Process().open_files())

    for _ in range(2):
        with suppress(Broken):
            transactions.run(fails)
        assert count_open_files() == 1
        assert in_child(count_open_files) == "+0"
        assert count_open_files() == 0
    transactions.close()
