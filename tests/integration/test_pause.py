"""Pausing: what a worker has confirmed to be paused does not start, until it is resumed."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from running import (
    DEADLINE,
    Gauge,
    Heard,
    Mortal,
    Places,
    Running,
    Signal,
    ask,
    beats_pass,
    ended,
    until,
    with_faults,
    working,
)

from umbel import Handle, Retry, State, Umbel
from umbel.backends import JobFilter
from umbel.clock import SystemClock
from umbel.telemetry import events

Scope = Literal["all", "queue", "task", "worker"]
SCOPES: list[tuple[Scope, str]] = [
    *(("all", ""), ("queue", "paused"), ("task", "work")),
    ("worker", "worker"),
]
RUNNING = JobFilter(states=(State.RUNNING,))
PROMPT = 1.2
"""A lease so short that a worker confirms within half a second."""
FAR = 3600.0
"""A lease so long that no heartbeat is sent, so that every change was notified."""


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
    with places.app("memory", tmp_path) as app:
        yield app


def pause(app: Umbel, scope: Scope, name: str = "") -> int:
    return ask(app, lambda operations: operations.pause(scope, name, "a test"))


def resume(app: Umbel, scope: Scope, name: str = "") -> int:
    return ask(app, lambda operations: operations.resume(scope, name)).epoch


def confirmed(app: Umbel, epoch: int) -> None:
    done, of = ask(app, lambda operations: operations.confirmed(epoch, within=30))
    assert done == of > 0


def looked(running: Running) -> None:
    """Wait until the worker has fetched twice more, so that it has claimed all jobs that it may.

    A worker that is paused itself does not fetch; it has reported that.
    """
    fetches = running.worker.fetches()

    def asked() -> bool:
        return running.worker.fetches() >= fetches + 2 or "worker worker" in running.worker.paused

    until(asked, "two more fetches")


# --- nothing starts --------------------------------------------------------------------------


@pytest.mark.parametrize(("scope", "name"), SCOPES, ids=[scope for scope, _ in SCOPES])
@pytest.mark.parametrize("kind", ["io", "cpu"])
def test_what_was_confirmed_as_paused_does_not_start_under_a_stream_of_publishing(
    app: Umbel, scope: Scope, name: str, kind: str
) -> None:
    is_paused, gauge = threading.Event(), Gauge()
    violations: list[str] = []

    def body() -> None:
        with gauge:
            if is_paused.is_set():
                violations.append("started while paused")

    if kind == "io":

        @app.task(name="work", queue="paused")
        async def work() -> None:
            body()
    else:

        @app.task(name="work", queue="paused")
        def work() -> None:
            body()

    published: list[Handle[Any]] = []
    stop_publishing = threading.Event()

    def publish() -> None:
        while not stop_publishing.wait(0.002):
            published.extend(app.publish_many([work.s(), work.s()]))

    publisher = threading.Thread(target=publish)
    with working(app, lease=PROMPT):
        publisher.start()
        try:
            until(lambda: gauge.entered > 20, "the stream to flow")
            confirmed(app, pause(app, scope, name))
            # What was claimed before that may still be on its way into a thread.
            until(lambda: not ask(app, lambda o: o.jobs(RUNNING)), "what was claimed to end")
            is_paused.set()
            before, sent = gauge.entered, len(published)
            until(lambda: len(published) > sent + 40, "more to be published")
        finally:
            stop_publishing.set()
            publisher.join()
        assert not violations
        assert gauge.entered == before
        is_paused.clear()
        resume(app, scope, name)
        for handle in published:
            handle.get(timeout=DEADLINE)
    assert gauge.entered == len(published)


@pytest.mark.parametrize(("scope", "name"), SCOPES, ids=[scope for scope, _ in SCOPES])
def test_a_pause_survives_the_workers(app: Umbel, scope: Scope, name: str) -> None:
    @app.task(name="work", queue="paused")
    async def work() -> int:
        return 1

    pause(app, scope, name)
    handle = work.delay()
    for _ in range(2):
        with working(app, lease=PROMPT) as running:
            looked(running)
            assert handle.state is State.QUEUED
    with working(app):
        resume(app, scope, name)
        assert handle.get(timeout=DEADLINE) == 1


@pytest.mark.parametrize(("scope", "name"), SCOPES, ids=[scope for scope, _ in SCOPES])
def test_a_resumed_worker_goes_on_at_once(app: Umbel, scope: Scope, name: str) -> None:
    @app.task(name="work", queue="paused")
    async def work() -> int:
        return 1

    pause(app, scope, name)
    with working(app, lease=FAR):
        handle = work.delay()
        resume(app, scope, name)
        assert handle.get(timeout=DEADLINE) == 1


def test_other_queues_go_on_while_one_is_paused(app: Umbel) -> None:
    @app.task(queue="paused")
    async def held() -> None: ...

    @app.task(queue="open")
    async def free() -> int:
        return 1

    with working(app, lease=PROMPT):
        confirmed(app, pause(app, "queue", "paused"))
        waiting = held.delay()
        assert free.delay().get(timeout=DEADLINE) == 1
        assert waiting.state is State.QUEUED


def test_other_tasks_of_the_queue_go_on_while_one_is_paused(app: Umbel) -> None:
    @app.task(name="held")
    async def held() -> None: ...

    @app.task(name="free")
    async def free() -> int:
        return 1

    with working(app, lease=PROMPT, io=2):
        confirmed(app, pause(app, "task", "held"))
        waiting = app.publish_many([held.options(priority=9).s() for _ in range(50)])
        assert free.delay().get(timeout=DEADLINE) == 1
        assert {handle.state for handle in waiting} == {State.QUEUED}


def test_other_workers_go_on_while_one_is_paused(app: Umbel) -> None:
    @app.task(name="work")
    async def work() -> None: ...

    with working(app, name="one", lease=PROMPT), working(app, name="two", lease=PROMPT):
        confirmed(app, pause(app, "worker", "one"))
        handles = app.publish_many([work.s() for _ in range(20)])
        for handle in handles:
            handle.get(timeout=DEADLINE)
        assert {handle.record().worker for handle in handles} == {"two"}


def test_a_paused_worker_that_starts_anew_fetches_nothing_either(app: Umbel) -> None:
    """Its first fetch comes before its first heartbeat, so it reads the pauses before."""

    @app.task(name="work")
    async def work() -> int:
        return 1

    pause(app, "worker", "worker")
    handles = app.publish_many([work.s() for _ in range(20)])
    for _ in range(3):
        with working(app, lease=FAR) as running:
            until(lambda: running.worker.heartbeat_age is not None, "a heartbeat")
            assert running.worker.fetches() == 0
    assert {handle.state for handle in handles} == {State.QUEUED}
    with working(app, name="other"):
        assert [handle.get(timeout=DEADLINE) for handle in handles] == [1] * 20


def test_what_runs_already_runs_on(app: Umbel) -> None:
    runs, go = Signal("the start"), Signal("the end")

    @app.task
    async def work() -> str:
        runs.set()
        await go.seen()
        return "done"

    with working(app, lease=PROMPT):
        handle = work.delay()
        runs.wait()
        confirmed(app, pause(app, "all"))
        assert handle.state is State.RUNNING
        go.set()
        assert handle.get(timeout=DEADLINE) == "done"


def test_a_retry_that_falls_due_waits_for_the_resume(app: Umbel) -> None:
    heard, go = Heard(app), Signal("the pause")

    @app.task(retry=Retry(3, first=0.01))
    async def work() -> int:
        if not go:
            await go.seen()
            raise OSError("no")
        return 2

    with working(app, lease=PROMPT) as running:
        handle = work.delay()
        until(lambda: handle.state is State.RUNNING, "it to run")
        confirmed(app, pause(app, "all"))
        go.set()
        heard.wait(events.JobRetried)
        looked(running)
        assert handle.state in (State.QUEUED, State.SCHEDULED)
        resume(app, "all")
        assert handle.get(timeout=DEADLINE) == 2
    assert ended(handle.record()) == ["retry", "succeeded"]


def test_a_delayed_job_that_falls_due_waits_for_the_resume(app: Umbel) -> None:
    @app.task
    async def work() -> int:
        return 1

    with working(app, lease=PROMPT) as running:
        confirmed(app, pause(app, "all"))
        handle = work.options(delay=0.05).delay()
        looked(running)
        assert handle.state in (State.QUEUED, State.SCHEDULED)
        resume(app, "all")
        assert handle.get(timeout=DEADLINE) == 1


def test_a_paused_job_can_be_cancelled(memory: Umbel) -> None:
    @memory.task
    async def work() -> None: ...

    pause(memory, "all")
    with working(memory):
        handle = work.delay()
        assert handle.cancel()
        assert handle.state is State.CANCELLED


# --- who has confirmed -----------------------------------------------------------------------


def test_every_worker_confirms(app: Umbel) -> None:
    with working(app, name="one", lease=PROMPT), working(app, name="two", lease=PROMPT):
        done, of = ask(app, lambda o: _pause_and_confirm(o))
        assert (done, of) == (2, 2)


async def _pause_and_confirm(operations: Any) -> tuple[int, int]:
    return await operations.confirmed(await operations.pause("all", "", "a test"), within=30)


def test_a_worker_with_no_free_slot_confirms_too(memory: Umbel) -> None:
    runs, go = Signal("the start"), Signal("the end")

    @memory.task
    async def work() -> None:
        runs.set()
        await go.seen()

    with working(memory, io=1, cpu=0, lease=PROMPT):
        work.delay()
        runs.wait()
        confirmed(memory, pause(memory, "all"))
        go.set()


def test_a_worker_that_starts_while_paused_confirms(memory: Umbel) -> None:
    epoch = pause(memory, "all")
    with working(memory, lease=PROMPT):
        confirmed(memory, epoch)


def test_pausing_and_resuming_are_reported(memory: Umbel) -> None:
    heard = Heard(memory)
    with working(memory, lease=PROMPT):
        pause(memory, "queue", "mail")
        assert heard.wait(events.PausesChanged).paused == ("queue mail",)
        resume(memory, "queue", "mail")
        assert heard.wait(events.PausesChanged, 2).paused == ()


def test_two_pauses_are_lifted_one_by_one(app: Umbel) -> None:
    @app.task(name="work")
    async def work() -> int:
        return 1

    with working(app, lease=PROMPT) as running:
        pause(app, "all")
        confirmed(app, pause(app, "task", "work"))
        handle = work.delay()
        resume(app, "all")
        looked(running)
        assert handle.state is State.QUEUED
        resume(app, "task", "work")
        assert handle.get(timeout=DEADLINE) == 1


def test_pausing_twice_and_resuming_what_is_not_paused_are_fine(app: Umbel) -> None:
    first, second = pause(app, "all"), pause(app, "all")
    assert second == first  # the second changes nothing, so workers need not confirm it
    assert len(ask(app, lambda operations: operations.pauses())) == 1
    resume(app, "all")
    resume(app, "all")
    resume(app, "queue", "never heard of")
    assert ask(app, lambda operations: operations.pauses()) == ()


@pytest.mark.parametrize("name", ["a'b", 'a"b', "all", "ü 漢"])
def test_a_queue_of_any_name_can_be_paused(memory: Umbel, name: str) -> None:
    pause(memory, "queue", name)
    assert [p.name for p in ask(memory, lambda operations: operations.pauses())] == [name]
    resume(memory, "queue", name)
    assert ask(memory, lambda operations: operations.pauses()) == ()


def test_a_pause_made_during_the_first_heartbeat_is_noticed(app: Umbel) -> None:
    """The pause is made after the first heartbeat has read, and before it waits for changes."""
    heard, read, go = Heard(app), Signal("the first beat"), Signal("the pause")
    looks = 0

    async def hold(call: Callable[[], Awaitable[Any]]) -> Any:
        nonlocal looks
        state = await call()
        looks += 1
        if looks == 2 and not read:  # the worker itself looked before, when it began
            read.set()
            await go.seen()
        return state

    with working(app, lease=FAR, build=with_faults({"read": hold})):
        read.wait()
        pause(app, "all")
        go.set()
        assert heard.wait(events.PausesChanged).paused == ("all",)


@pytest.mark.parametrize(("scope", "name"), SCOPES, ids=[scope for scope, _ in SCOPES])
def test_work_that_waits_because_it_is_paused_is_no_stall(
    app: Umbel, scope: Scope, name: str
) -> None:
    heard = Heard(app)

    @app.task(name="work", queue="paused")
    async def work() -> None: ...

    pause(app, scope, name)
    work.delay()
    with working(app, lease=0.9, stall=0.1, build=with_faults({}, Mortal)):
        beats_pass(app, 10)
    assert not heard.all(events.WorkerStalled)


class Wrong(SystemClock):
    """The wrong clock of an operator's machine."""

    __slots__ = ("by",)

    def __init__(self, by: float) -> None:
        self.by = by

    def now(self) -> float:
        return super().now() + self.by


@pytest.mark.parametrize("app", ["postgres"], indirect=True)
@pytest.mark.parametrize("hours", [-5, 5])
def test_an_operator_whose_clock_is_wrong_sees_the_living(app: Umbel, hours: int) -> None:
    settings = app.settings
    theirs = Umbel(settings.broker, namespace=settings.namespace, clock=Wrong(hours * 3600.0))
    with working(app):
        confirmed(theirs, pause(theirs, "all"))
        resume(theirs, "all")
        assert ask(theirs, lambda operations: operations.health()).ok
    theirs.close()
