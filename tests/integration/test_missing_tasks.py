"""Jobs of tasks that some workers, or all of them, do not have."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from running import Places, ask, nats, rabbitmq, redis, until, working

from umbel import Signal, State, Umbel
from umbel.backends import JobFilter
from umbel.messages import Record, fresh_id
from umbel.telemetry import events

LEASE = 1.2
BACKENDS = [
    *("file", "postgres", "redis"),
    *("rabbitmq+redis", "nats+postgres", "redis+file", "rabbitmq+file"),
]
ONE_OF_EACH = pytest.mark.parametrize(
    "release", ["file", "postgres", "redis", "nats+postgres"], indirect=True
)


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    places = Places()
    yield places
    places.close()


class Release:
    """Applications of several versions of one program, on one backend."""

    def __init__(self, backend: str, places: Places, folder: Path, stack: ExitStack) -> None:
        self._stack = stack
        namespace = f"m{fresh_id()[-12:]}"
        broker, _, store = backend.partition("+")
        servers = {"redis": lambda: redis(namespace), "nats": lambda: nats(namespace)}
        urls = [
            stack.enter_context((servers | {"rabbitmq": rabbitmq})[one]())
            if one in ("redis", "nats", "rabbitmq")
            else places.url(one, folder)
            for one in (broker, store or broker)
        ]
        self._how: dict[str, Any] = {"store": urls[1], "namespace": namespace}
        self._broker = urls[0]

    def app(self, *tasks: str, **settings: Any) -> Umbel:
        app = Umbel(self._broker, **self._how, deadline=15.0, backlog="none", **settings)
        self._stack.callback(app.close)
        for name in tasks:
            app.task(name=name)(_returning(name))
        return app


def _returning(name: str) -> Any:
    async def body() -> str:
        return name

    return body


@pytest.fixture(params=BACKENDS)
def release(request: pytest.FixtureRequest, places: Places, tmp_path: Path) -> Iterator[Release]:
    with ExitStack() as stack:
        yield Release(request.param, places, tmp_path, stack)


def job(app: Umbel, id: str) -> Record:
    return ask(app, lambda o: o.job(id))


def heard(app: Umbel, kind: type[events.Event]) -> list[Any]:
    found: list[Any] = []
    app.telemetry.subscribe(lambda event: found.append(event) if isinstance(event, kind) else None)
    return found


def test_a_worker_without_a_task_leaves_its_jobs_to_a_worker_that_has_it(release: Release) -> None:
    old, new = release.app("a"), release.app("a", "b")
    missing = heard(old, events.TaskMissing)
    b, a = new.registry.find("b"), new.registry.find("a")
    with working(old, name="old", lease=LEASE):
        handles = [b.delay() for _ in range(12)]
        until(lambda: missing, "the old worker to meet a job of the new task")
        assert a.delay().get(timeout=30) == "a"
        with working(new, name="new", lease=LEASE):
            assert [handle.get(timeout=30) for handle in handles] == ["b"] * 12
    for handle in handles:
        found = job(new, handle.id)
        assert (found.state, found.attempt, found.deaths) == (State.SUCCEEDED, 1, 0)


def test_two_applications_that_share_a_queue_each_run_their_own(release: Release) -> None:
    one, two = release.app("one"), release.app("two")
    with working(one, name="one", lease=LEASE), working(two, name="two", lease=LEASE):
        handles = [
            app.registry.find(name).delay()
            for _ in range(10)
            for app, name in ((one, "one"), (two, "two"))
        ]
        assert [handle.get(timeout=60) for handle in handles] == ["one", "two"] * 10


def test_a_job_that_no_worker_can_run_is_reported_and_not_fetched_again(release: Release) -> None:
    old, new = release.app("a"), release.app("b")
    missing = heard(old, events.TaskMissing)
    with working(old, name="old", lease=LEASE) as worker:
        handle = new.registry.find("b").delay()
        until(lambda: any(not event.elsewhere for event in missing), "the report")
        until(lambda: ask(old, lambda o: o.missing_tasks()), "the task to be listed as missing")
        fetched = worker.worker.fetched()
        a = old.registry.find("a")
        for _ in range(20):  # other work goes on
            assert a.delay().get(timeout=30) == "a"
        assert worker.worker.fetched() - fetched <= 21
        found = job(old, handle.id)
        assert (found.state, found.attempt, found.deaths) == (State.QUEUED, 1, 0)
        (view,) = ask(old, lambda o: o.missing_tasks())
        assert (view.queue, view.task, view.jobs) == ("default", "b", 1)
        health = ask(old, lambda o: o.health())
        assert not health.ok
        assert "b" in health.checks["tasks"]
    with working(new, name="new", lease=LEASE):
        assert handle.get(timeout=30) == "b"
    assert ask(old, lambda o: o.missing_tasks()) == []
    assert len(missing) <= 2


def test_a_job_whose_task_was_missing_for_too_long_is_buried_with_the_reason(
    release: Release,
) -> None:
    old = release.app("a", missing_task_days=1.5 / 86_400)
    new = release.app("b")
    began = time.monotonic()
    handle = new.registry.find("b").delay()
    with working(old, name="old", lease=LEASE):
        until(lambda: job(old, handle.id).state is State.BURIED, "the burial")
    assert time.monotonic() - began >= 1.5
    found = job(old, handle.id)
    assert "no running worker" in found.reason
    assert (found.attempt, found.deaths) == (1, 0)
    # Retried when there is a worker, it runs.
    ask(old, lambda o: o.retry([handle.id]))
    with working(new, name="new", lease=LEASE):
        assert handle.get(timeout=30) == "b"


@ONE_OF_EACH
def test_a_workflow_that_waits_is_not_taken_for_jobs_of_missing_tasks(release: Release) -> None:
    app, other = release.app("a", missing_task_days=1.5 / 86_400), release.app("b")
    a, b = app.registry.find("a"), other.registry.find("b")
    approved = Signal("approved", timeout=600)
    app.workflow(name="approval")(lambda: a.si().after(approved))
    with working(app, name="app", lease=LEASE):
        run = app.workflows["approval"].delay()
        missing = b.delay()
        until(lambda: job(app, missing.id).state is State.BURIED, "the burial")
        assert [pause.name for pause in ask(app, lambda o: o.pauses()) if pause.name != "b"] == []
        run.signal("approved", True)
        assert run.get(timeout=30) == "a"


@ONE_OF_EACH
def test_jobs_published_later_wait_as_long_as_the_first(release: Release) -> None:
    old, new = release.app("a", missing_task_days=3 / 86_400), release.app("b")
    b = new.registry.find("b")
    first = b.delay()
    with working(old, name="old", lease=LEASE):
        until(lambda: ask(old, lambda o: o.pauses()), "the task to be paused")
        second = b.delay()
        until(lambda: job(old, first.id).state is State.BURIED, "the first burial")
        assert job(old, second.id).state is State.QUEUED
        until(lambda: job(old, second.id).state is State.BURIED, "the second burial")


def test_a_worker_without_a_task_delays_jobs_that_another_runs_by_a_bounded_time(
    release: Release,
) -> None:
    """Each job is returned at once, and later each further time, however many jobs there are."""
    old, new = release.app("a"), release.app("b")
    with working(new, name="new", lease=LEASE), working(old, name="old", lease=LEASE):
        handles = new.publish_many([new.registry.find("b").s() for _ in range(300)])
        for handle in handles:
            assert handle.get(timeout=60) == "b"
    jobs = [job for job in ask(new, lambda o: o.jobs(JobFilter(limit=1000))) if job.task == "b"]
    delays = [sorted(attempt.delay or 0.0 for attempt in job.attempts) for job in jobs]
    assert len(jobs) == 300
    for several in delays:
        allowed = [0.0, *(min(0.08 * 1.5**times, 12.0) for times in range(len(several)))]
        assert all(one <= most for one, most in zip(several, allowed, strict=False))


@ONE_OF_EACH
def test_a_missing_task_with_a_limit_or_a_key_is_reported_and_buried(release: Release) -> None:
    """Its jobs wait at a gate, so that no worker claims them."""
    old = release.app("a", missing_task_days=1.5 / 86_400)
    new = release.app()

    @new.task(name="limited", limit=1)
    async def limited() -> None: ...

    @new.task(name="routed", affinity="key")
    async def routed(key: str) -> None: ...

    handles = [limited.delay(), routed.delay("k")]
    with working(old, name="old", lease=LEASE):
        missing = ask(old, lambda o: o.missing_tasks())
        assert [view.task for view in missing] == ["limited", "routed"]
        for handle in handles:
            until(lambda h=handle: job(old, h.id).state is State.BURIED, "the burial")
            assert "no running worker" in job(old, handle.id).reason


@ONE_OF_EACH
def test_a_task_that_only_workers_of_another_queue_have_is_reported(release: Release) -> None:
    old, new = release.app("a"), release.app("b")
    views: list[Any] = []
    waiting: list[Record] = []

    def is_reported() -> bool:  # while a worker looks at the job, it does not wait
        views[:] = ask(old, lambda o: o.missing_tasks())
        return bool(views)

    def is_waiting() -> bool:
        waiting[:] = [job(old, handle.id)]
        return waiting[0].state is not State.RUNNING

    with working(old, name="old", lease=LEASE):
        with working(new, name="new", lease=LEASE, queues=("other",)):
            handle = new.registry.find("b").delay()
            until(is_reported, "the task to be reported")
            assert [(view.queue, view.task) for view in views] == [("default", "b")]
            until(is_waiting, "the job to wait")
            (said,) = ask(old, lambda o: o.hindrances(waiting[0]))
            assert "queue default has the task b" in said
        with working(new, name="new", lease=LEASE):
            assert handle.get(timeout=30) == "b"


@ONE_OF_EACH
def test_a_job_of_a_missing_task_can_be_cancelled(release: Release) -> None:
    old, new = release.app("a"), release.app("b")
    with working(old, name="old", lease=LEASE):
        handle = new.registry.find("b").delay()
        until(lambda: ask(old, lambda o: o.pauses()), "the task to be paused")
        until(lambda: job(old, handle.id).state is State.QUEUED, "the job to be given back")
        handle.cancel()
        assert job(old, handle.id).state is State.CANCELLED


@ONE_OF_EACH
def test_many_missing_tasks_do_not_keep_others_waiting(release: Release) -> None:
    old, new = release.app("a"), release.app(*(f"b{n}" for n in range(40)))
    handles = [new.registry.find(f"b{n}").delay() for n in range(40)]
    with working(old, name="old", lease=LEASE, io=2):
        assert old.registry.find("a").delay().get(timeout=60) == "a"
    with working(new, name="new", lease=LEASE):
        assert {handle.get(timeout=60) for handle in handles} == {f"b{n}" for n in range(40)}


@ONE_OF_EACH
def test_an_operators_pause_of_a_missing_task_stays(release: Release) -> None:
    old, new = release.app("a"), release.app("b")
    with working(old, name="old", lease=LEASE):
        handle = new.registry.find("b").delay()
        until(lambda: ask(old, lambda o: o.missing_tasks()), "the task to be missing")
        ask(old, lambda o: o.pause("task", "b", "not now"))
    with working(new, name="new", lease=LEASE):
        until(lambda: not ask(old, lambda o: o.missing_tasks()), "the task to be there")
        assert job(old, handle.id).state is State.QUEUED
        ask(old, lambda o: o.resume("task", "b"))
        assert handle.get(timeout=30) == "b"
    assert ask(old, lambda o: o.jobs(JobFilter(states=(State.BURIED,)))) == []


@ONE_OF_EACH
def test_a_worker_that_leaves_jobs_to_a_paused_one_is_not_taken_for_stalled(
    release: Release,
) -> None:
    old, new = release.app("a"), release.app("b")
    stalled, missing = heard(old, events.WorkerStalled), heard(old, events.TaskMissing)
    ask(old, lambda o: o.pause("worker", "new", "not now"))
    short = {"lease": 0.6, "stall": 1.5}
    with working(new, name="new", lease=LEASE), working(old, name="old", **short) as worker:
        handle = new.registry.find("b").delay()
        until(lambda: missing, "the old worker to meet a job of the new task")
        assert missing[0].elsewhere
        fetches = worker.worker.fetches()
        until(lambda: worker.worker.fetches() > fetches + 20, "fetches that find nothing")
        assert stalled == []
        ask(old, lambda o: o.resume("worker", "new"))
        assert handle.get(timeout=30) == "b"
