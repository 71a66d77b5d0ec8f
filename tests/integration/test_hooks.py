"""Hooks run around jobs, in order, and can neither lose a job nor change its outcome."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from integration.conftest import Place, working
from umbel import Hook, Retry, Umbel, current
from umbel.errors import ConfigurationError, ResultTimeout
from umbel.integrations import ContextHook, SentryHook, SqlalchemyHook
from umbel.tasks.hooks import NAMES, Hooks, OutgoingJob
from umbel.telemetry import events
from umbel.testing import RecordedHooks, in_memory

HANG = 60


@pytest.fixture
def app(sqlite: Place) -> Umbel:
    return sqlite.app()


@pytest.fixture
def failures(app: Umbel) -> list[events.HookFailed]:
    found: list[events.HookFailed] = []

    def collect(event: events.Event) -> None:
        if isinstance(event, events.HookFailed):
            found.append(event)

    app.telemetry.subscribe(collect)
    return found


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_every_hook_is_called_in_order(app: Umbel, kind: str) -> None:
    recorded, settled = RecordedHooks(), threading.Event()

    class Tell(Hook):
        def on_settle(self, job: Any) -> None:
            settled.set()

    app.use(recorded)
    app.use(Tell())
    task = declare(app, kind, lambda: recorded.calls.append(("run", None)))
    with working(app):
        handle = task.delay(7)
        handle.get(timeout=HANG)
        assert settled.wait(HANG)
    assert recorded.names() == [
        *(["on_worker_start", "on_publish"]),
        *("on_fetch", "before_run", "run", "after_run", "on_settle", "on_worker_stop"),
    ]
    calls = dict(recorded.calls)
    assert (calls["on_publish"].task, calls["on_publish"].args) == ("task", (7,))
    assert calls["on_publish"].id == calls["before_run"].id == handle.id
    assert [job.id for job in calls["on_fetch"]] == [handle.id]
    assert (calls["on_settle"].job.id, calls["on_settle"].outcome) == (handle.id, "succeeded")


def declare(app: Umbel, kind: str, work: Any) -> Any:
    def blocking(number: int) -> int:
        work()
        return number

    async def coroutine(number: int) -> int:
        work()
        return number

    return app.task(name="task", retry=Retry(0))(blocking if kind == "def" else coroutine)


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("hook", ["def", "async def"])
def test_hooks_around_a_run_are_nested_in_the_order_of_use(
    app: Umbel, kind: str, hook: str
) -> None:
    order: list[str] = []

    class Plain(Hook):
        def __init__(self, name: str) -> None:
            self.name = name

        def around_run(self, job: Any) -> Iterator[None]:
            order.append(f"before {self.name}")
            yield
            order.append(f"after {self.name}")

    class Async(Hook):
        def __init__(self, name: str) -> None:
            self.name = name

        async def around_run(self, job: Any) -> AsyncIterator[None]:
            await asyncio.sleep(0)
            order.append(f"before {self.name}")
            yield
            order.append(f"after {self.name}")

    for name in ("1", "2"):
        app.use(Plain(name) if hook == "def" else Async(name))
    task = declare(app, kind, lambda: order.append("run"))
    with working(app):
        assert task.delay(1).get(timeout=HANG) == 1
    assert order == ["before 1", "before 2", "run", "after 2", "after 1"]


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("where", [*NAMES, "after_run"])
def test_a_hook_that_raises_is_reported_and_the_job_goes_on(
    app: Umbel, failures: list[events.HookFailed], kind: str, where: str
) -> None:
    class Broken(Hook):
        pass

    def fail(self: Any, argument: Any) -> None:
        raise ValueError("broken on purpose")

    def fail_before(self: Any, job: Any) -> Iterator[None]:
        raise ValueError("broken on purpose")
        yield

    def fail_after(self: Any, job: Any) -> Iterator[None]:
        yield
        raise ValueError("broken on purpose")

    methods: dict[str, Any] = {"around_run": fail_before, "after_run": fail_after}
    setattr(Broken, where.replace("after_run", "around_run"), methods.get(where, fail))
    app.use(Broken())
    if where == "on_tick":
        app.schedule("often", declare(app, kind, lambda: None).s(1), every=1)
    else:
        task = declare(app, kind, lambda: None)
    reported = threading.Event()
    app.telemetry.subscribe(
        lambda event: reported.set() if isinstance(event, events.HookFailed) else None
    )
    with working(app):
        if where != "on_tick":
            assert task.delay(5).get(timeout=HANG) == 5
        if where != "on_worker_stop":
            assert reported.wait(HANG)
    assert {event.error for event in failures} == {"ValueError: broken on purpose"}


class Textless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no text")


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("where", ["on_settle", "before", "after"])
@pytest.mark.parametrize("hook", ["def", "async def"])
@pytest.mark.parametrize(
    "error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, Textless]
)
def test_a_hook_that_raises_what_is_no_error_does_not_change_the_outcome(
    app: Umbel,
    failures: list[events.HookFailed],
    kind: str,
    where: str,
    hook: str,
    error: type[BaseException],
) -> None:
    def fail(place: str) -> None:
        if place == where:
            raise error("on purpose")

    class Plain(Hook):
        def around_run(self, job: Any) -> Iterator[None]:
            fail("before")
            yield
            fail("after")

        def on_settle(self, settled: Any) -> None:
            fail("on_settle")

    class Async(Hook):
        async def around_run(self, job: Any) -> AsyncIterator[None]:
            fail("before")
            yield
            fail("after")

        async def on_settle(self, settled: Any) -> None:
            fail("on_settle")

    app.use(Plain() if hook == "def" else Async())
    task = declare(app, kind, lambda: None)
    with working(app):
        for number in (1, 2):
            assert task.delay(number).get(timeout=HANG) == number
    assert {event.error.partition(":")[0] for event in failures} == {error.__name__}


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("hook", ["hangs", "swallows the stop"])
def test_a_stop_while_a_hook_begins_ends_the_run_and_the_hooks_before_it(
    app: Umbel, kind: str, hook: str
) -> None:
    order: list[str] = []

    class Outer(Hook):
        def around_run(self, job: Any) -> Iterator[None]:
            order.append("before")
            try:
                yield
            except GeneratorExit:
                order.append("forgotten")
                raise
            finally:
                order.append("after")

    class Inner(Hook):
        async def around_run(self, job: Any) -> AsyncIterator[None]:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if hook == "hangs":
                    raise
            yield

    class Blocking(Hook):
        def around_run(self, job: Any) -> Iterator[None]:
            try:
                while True:
                    threading.Event().wait(0.01)
            except BaseException:
                pass
            yield

    app.use(Outer())
    app.use(Blocking() if (kind, hook) == ("def", "swallows the stop") else Inner())

    def work(number: int) -> None:
        order.append("run")

    async def await_work(number: int) -> None:
        order.append("run")

    task = app.task(name="task", timeout=0.1, retry=Retry(0))(work if kind == "def" else await_work)
    with working(app), pytest.raises(TimeoutError) as raised:
        task.delay(1).get(timeout=HANG)
    assert not isinstance(raised.value, ResultTimeout)
    assert order == ["before", "after"]


def test_stop_iteration_of_a_task_is_no_error_of_a_hook(
    app: Umbel, failures: list[events.HookFailed]
) -> None:
    class Plain(Hook):
        def around_run(self, job: Any) -> Iterator[None]:
            yield

    def fail() -> None:
        raise StopIteration("the task's own")

    app.use(Plain())
    task = declare(app, "def", fail)
    with working(app):
        handle = task.delay(1)
        with pytest.raises(Exception, match="the task's own"):
            handle.get(timeout=HANG)
    assert failures == []


def test_a_hook_that_catches_the_error_of_a_task_does_not_change_the_outcome(app: Umbel) -> None:
    seen: list[str] = []

    class Catch(Hook):
        def around_run(self, job: Any) -> Iterator[None]:
            try:
                yield
            except ValueError as error:
                seen.append(str(error))

    app.use(Catch())

    def fail() -> None:
        raise ValueError("the task's own")

    for kind in ("def", "async def"):
        with in_memory(app) as jobs:
            handle = declare_once(app, kind, fail).delay(1)
            jobs.drain(errors="collect")
            with pytest.raises(ValueError, match="the task's own"):
                handle.get(timeout=HANG)
    assert seen == ["the task's own"] * 2


def declare_once(app: Umbel, kind: str, work: Any) -> Any:
    name = f"task of {kind}"

    def blocking(number: int) -> None:
        work()

    async def coroutine(number: int) -> None:
        work()

    return app.task(name=name, retry=Retry(0))(blocking if kind == "def" else coroutine)


def test_headers_of_hooks_reach_the_task_and_cannot_replace_those_of_umbel(
    app: Umbel, failures: list[events.HookFailed]
) -> None:
    class Add(Hook):
        def __init__(self, headers: Any) -> None:
            self.headers = headers

        def on_publish(self, job: OutgoingJob) -> Mapping[str, str]:
            found: Mapping[str, str] = self.headers
            return found

    bad: list[Any] = [
        *({"timeout": "1"}, {"queue": "x"}, {"Bad Name": "x"}, {"number": 1}, {"nul": "\0"}),
        *({"long": "x" * 10_000}, {"half": "\ud800"}, [1]),
    ]
    for headers in (*bad, {"requestid": "r-1"}):
        app.use(Add(headers))

    @app.task
    def show() -> dict[str, str]:
        return current.job.headers

    with in_memory(app) as jobs:
        handle = show.delay()
        jobs.drain()
        assert handle.get(timeout=HANG) == {"requestid": "r-1"}
    assert len(failures) == len(bad)


def test_a_hook_that_changes_the_arguments_does_not_change_the_message(app: Umbel) -> None:
    class Change(Hook):
        def on_publish(self, job: OutgoingJob) -> None:
            job.args[0].append("changed")

    app.use(Change())

    @app.task
    def show(values: list[str]) -> list[str]:
        return values

    with in_memory(app) as jobs:
        handle = show.delay(["a"])
        jobs.drain()
        assert handle.get(timeout=HANG) == ["a"]


def test_a_hook_that_hangs_is_cancelled_and_reported() -> None:
    reported: list[tuple[str, str]] = []

    class Hang(Hook):
        async def on_settle(self, settled: Any) -> None:
            await asyncio.Event().wait()

    hooks = Hooks(lambda hook, error: reported.append((hook, error)))
    hooks.add(Hang())
    asyncio.run(hooks.call("on_settle", None, limit=0.01))
    [(hook, error)] = reported
    assert hook.endswith("Hang.on_settle")
    assert error == "it was not done after 0.01 s and was cancelled"


def test_a_stop_while_a_hook_begins_ends_the_hooks_before_it(app: Umbel) -> None:
    order: list[str] = []

    class Outer(Hook):
        def around_run(self, job: Any) -> Iterator[None]:
            order.append("before")
            try:
                yield
            finally:
                order.append("after")

    class Hang(Hook):
        async def around_run(self, job: Any) -> AsyncIterator[None]:
            await asyncio.Event().wait()
            yield

    app.use(Outer())
    app.use(Hang())

    @app.task(timeout=0.05, retry=Retry(0))
    async def short() -> None:
        """Never called."""

    with working(app), pytest.raises(TimeoutError):
        short.delay().get(timeout=HANG)
    assert order == ["before", "after"]


def test_a_hook_that_ignores_its_cancellation_is_left() -> None:
    reported: list[str] = []

    class Ignore(Hook):
        async def on_settle(self, settled: Any) -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.Event().wait()

    async def call() -> None:
        async with asyncio.timeout(HANG):
            await hooks.call("on_settle", None, limit=0.01)

    hooks = Hooks(lambda hook, error: reported.append(error))
    hooks.add(Ignore())
    asyncio.run(call())
    assert reported == ["it was not done after 0.01 s and was cancelled"]


def test_a_run_that_hangs_in_a_hook_ends_at_the_timeout_of_its_task(app: Umbel) -> None:
    class Hang(Hook):
        async def around_run(self, job: Any) -> AsyncIterator[None]:
            await asyncio.Event().wait()
            yield

    app.use(Hang())

    @app.task(timeout=0.05, retry=Retry(0))
    async def short() -> None:
        """Never called."""

    with working(app), pytest.raises(TimeoutError) as raised:
        short.delay().get(timeout=HANG)
    assert not isinstance(raised.value, ResultTimeout)


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ({}, "no hook; there are on_publish"),
        ({"on_publsh": lambda self, job: None}, "unknown hook on_publsh; there are on_publish"),
        ({"around_run": lambda self, job: None}, "around_run: it must have one yield"),
    ],
)
def test_a_wrong_hook_is_refused_with_what_there_is(
    app: Umbel, methods: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        app.use(type("Mine", (), methods)())


def test_hooks_of_the_wrong_kind_are_refused(app: Umbel) -> None:
    class Publish(Hook):
        async def on_publish(self, job: Any) -> None:  # type: ignore[override]
            """Cannot be awaited."""

    class Settle(Hook):
        def on_settle(self, settled: Any) -> Iterator[None]:
            yield

    with pytest.raises(ConfigurationError, match="write it as def"):
        app.use(Publish())
    with pytest.raises(ConfigurationError, match="only around_run may yield"):
        app.use(Settle())
    with pytest.raises(ConfigurationError, match="a class; give an object"):
        app.use(Publish)


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_context_variables_are_carried_from_the_publisher_to_the_task(
    app: Umbel, kind: str
) -> None:
    tenant: ContextVar[str] = ContextVar("tenant")
    locale: ContextVar[str] = ContextVar("locale", default="en")
    app.use(ContextHook(tenant, locale))
    seen: list[tuple[str, str]] = []
    task = declare(app, kind, lambda: seen.append((tenant.get("none"), locale.get())))
    token = tenant.set("acme")
    with working(app):
        task.delay(1).get(timeout=HANG)
        tenant.reset(token)
        task.delay(2).get(timeout=HANG)
    assert seen == [("acme", "en"), ("none", "en")]


def test_context_variables_of_the_same_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="different names"):
        ContextHook(ContextVar("a"), ContextVar("a"))


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_errors_are_reported_to_sentry_with_the_job(app: Umbel, kind: str) -> None:
    sentry_sdk = pytest.importorskip("sentry_sdk")
    sent: list[dict[str, Any]] = []
    sentry_sdk.init(
        dsn="http://key@127.0.0.1/1",
        before_send=lambda event, hint: sent.append(event),
        default_integrations=False,
    )
    app.use(SentryHook())

    def fail() -> None:
        raise ValueError("card declined")

    try:
        with in_memory(app) as jobs:
            handle = declare(app, kind, fail).delay(1)
            jobs.drain(errors="collect")
    finally:
        sentry_sdk.init(default_integrations=False)
    [event] = sent
    assert event["exception"]["values"][-1]["value"] == "card declined"
    assert event["tags"] == {"umbel.task": "task", "umbel.queue": "default"}
    assert event["contexts"]["umbel"] == {"job": handle.id, "attempt": 1}


DJANGO = """
import django
from django.conf import settings
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": "app.db"}
settings.configure(DATABASES={"default": database})
django.setup()
from django.db import connection
from umbel import Umbel
from umbel.integrations import DjangoHook
from umbel.testing import in_memory
app = Umbel("sqlite:///:memory:")
app.use(DjangoHook())

@app.task
def use():
    print("closed" if connection.connection is None else "open")
    connection.ensure_connection()
    connection.close_at = None
    if current:
        connection.close_at = 0  # it is older than CONN_MAX_AGE allows

for current in (False, True, False):
    with in_memory(app) as jobs:
        use.delay()
        jobs.drain()
"""


def test_old_connections_of_django_are_closed_around_a_run(tmp_path: Path) -> None:
    pytest.importorskip("django")
    done = subprocess.run(
        [sys.executable, "-c", DJANGO], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["closed", "open", "closed"], done.stderr


def test_sessions_of_sqlalchemy_are_removed_after_a_run(app: Umbel) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.orm import Session, scoped_session, sessionmaker

    engine = sqlalchemy.create_engine("sqlite://")
    sessions = scoped_session(sessionmaker(engine))
    app.use(SqlalchemyHook(sessions))
    used: list[Session] = []
    task = declare(app, "def", lambda: used.append(sessions()))
    with working(app, cpu=1):
        for number in (1, 2):
            task.delay(number).get(timeout=HANG)
    first, second = used
    assert first is not second
    with pytest.raises(ConfigurationError, match="scoped_session"):
        SqlalchemyHook(engine)
    engine.dispose()
