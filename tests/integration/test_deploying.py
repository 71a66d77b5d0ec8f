"""Deployments on every store and on pairs: begin, wait, go and end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from running import (
    DEADLINE,
    Places,
    Signal,
    ask,
    ask_backend,
    nats,
    rabbitmq,
    redis,
    until,
    with_faults,
    working,
)

from umbel import State, Umbel
from umbel.backends import JobFilter, Roles, WorkerEntry
from umbel.control import DeploymentPlan
from umbel.errors import DeploymentLost, DeploymentUnderWay
from umbel.messages import fresh_id
from umbel.operations import DeployView, Operations
from umbel.tasks.fingerprints import fingerprint, python_version

PROMPT = 1.2
"""A lease so short that a worker confirms within half a second."""


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    places = Places()
    yield places
    places.close()


@pytest.fixture(params=["memory", "file", "postgres", "redis", "rabbitmq", "nats"])
def app(request: pytest.FixtureRequest, places: Places, tmp_path: Path) -> Iterator[Umbel]:
    namespace, place = f"d{fresh_id()[-12:]}", request.param
    with ExitStack() as stack:
        store = places.url("postgres" if place in ("rabbitmq", "nats") else place, tmp_path)
        broker = store
        if place == "redis":
            broker = store = stack.enter_context(redis(namespace))
        elif place == "rabbitmq":
            broker = stack.enter_context(rabbitmq())
        elif place == "nats":
            broker = stack.enter_context(nats(namespace))
        how: dict[str, Any] = {"namespace": namespace, "deadline": 15.0, "backlog": "none"}
        app = Umbel(broker, store=store, **how)
        stack.callback(app.close)
        yield app


@pytest.fixture
def memory(places: Places, tmp_path: Path) -> Iterator[Umbel]:
    with places.app("memory", tmp_path) as app:
        yield app


def plan(who: str = "anna", **changes: Any) -> DeploymentPlan:
    return DeploymentPlan(id=fresh_id(), who=who, host="here", pid=1, **changes)


class Waiting:
    """A deployment that has begun and waits for go in its own thread."""

    def __init__(self, app: Umbel, limit: float = DEADLINE, **changes: Any) -> None:
        self._app = app
        self._limit = limit
        self.plan = plan(**changes)
        self.views: list[DeployView] = []
        self.view: DeployView | None = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        async def work(operations: Operations) -> DeployView:
            begun = await operations.deploy.begin(self.plan)
            return await operations.deploy.wait(
                begun, interval=20, limit=self._limit, show=self.views.append
            )

        try:
            self.view = ask(self._app, work)
        except Exception as error:
            self.error = error

    def ended(self) -> DeployView:
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        assert self.view is not None
        assert self.view.deployment is not None
        return self.view


def end(app: Umbel, who: str = "anna", **how: Any) -> Any:
    return ask(app, lambda operations: operations.deploy.end(who, **how))


def status(app: Umbel, *code: Any) -> DeployView:
    return ask(app, lambda operations: operations.deploy.status(*code))


def test_go_waits_for_what_must_not_be_interrupted_and_for_nothing_else(app: Umbel) -> None:
    firm_runs, gentle_runs = Signal("the firm one"), Signal("the gentle one")
    go_on, enough = Signal("its end"), Signal("the other's end")

    @app.task(name="firm")
    def firm() -> None:
        firm_runs.set()
        go_on.wait()

    @app.task(name="gentle", interruptible=True)
    async def gentle() -> None:
        gentle_runs.set()
        await enough.seen()

    @app.task(name="short")
    async def short() -> int:
        return 1

    with working(app, name="w", lease=PROMPT):
        held, running = firm.delay(), gentle.delay()
        firm_runs.wait()
        gentle_runs.wait()
        waiting = Waiting(app, reason="release 7")
        until(lambda: any(not view.unconfirmed for view in waiting.views), "the worker to confirm")
        view = waiting.views[-1]
        assert [run.job for _, run in view.blocking_runs] == [held.id]
        (worker,) = view.workers
        assert {(run.job, run.interruptible) for run in worker.runs} == {
            *((held.id, False), (running.id, True)),
        }
        later = short.delay()
        go_on.set()
        view = waiting.ended()
        assert view.deployment.state == "go"
        assert [run.job for run in view.workers[0].runs] == [running.id]
        assert status(app).deployment.reason == "release 7"
        assert later.state is State.QUEUED
        ended = end(app)
        assert ended.stood >= ended.ready - ended.ended
        assert later.get(timeout=DEADLINE) == 1
        assert end(app) is None
        enough.set()
        assert held.get(timeout=DEADLINE) is None
        assert running.get(timeout=DEADLINE) is None


def test_after_the_limit_workers_fetch_again(app: Umbel) -> None:
    runs, go_on = Signal("the firm one"), Signal("its end")

    @app.task(name="firm")
    def firm() -> None:
        runs.set()
        go_on.wait()

    @app.task(name="short")
    async def short() -> int:
        return 1

    with working(app, name="w", lease=PROMPT):
        held = firm.delay()
        runs.wait()
        view = Waiting(app, limit=0.3).ended()
        assert view.deployment.state == "aborted"
        assert [(one.name, run.job) for one, run in view.blocking_runs] == [("w", held.id)]
        assert short.delay().get(timeout=DEADLINE) == 1
        go_on.set()
        held.get(timeout=DEADLINE)


def test_a_deployment_of_one_worker_waits_for_that_one_only(app: Umbel) -> None:
    runs, go_on = Signal("the firm one"), Signal("its end")

    @app.task(name="firm")
    def firm() -> None:
        runs.set()
        go_on.wait()

    @app.task(name="short")
    async def short() -> int:
        return 1

    with working(app, name="one", lease=PROMPT), working(app, name="two", lease=PROMPT):
        held = firm.delay()
        runs.wait()
        where = ask(app, lambda operations: operations.job(held.id)).worker
        other = "two" if where == "one" else "one"
        view = Waiting(app, workers=(other,)).ended()
        assert view.deployment.state == "go"
        assert [worker.name for worker in view.workers] == [other]
        jobs = app.publish_many([short.s() for _ in range(10)])
        assert [job.get(timeout=DEADLINE) for job in jobs] == [1] * 10
        assert {job.record().worker for job in jobs} == {where}
        end(app)
        go_on.set()
        held.get(timeout=DEADLINE)


def test_a_deployment_of_a_queue_waits_for_that_one_only(app: Umbel) -> None:
    runs, go_on = Signal("the firm one"), Signal("its end")

    @app.task(name="firm", queue="slow")
    def firm() -> None:
        runs.set()
        go_on.wait()

    @app.task(name="mail", queue="mail")
    async def mail() -> int:
        return 1

    with working(app, name="w", lease=PROMPT):
        held = firm.delay()
        runs.wait()
        view = Waiting(app, queues=("mail",)).ended()
        assert view.deployment.state == "go"
        waits = mail.delay()
        go_on.set()
        held.get(timeout=DEADLINE)
        assert firm.delay().get(timeout=DEADLINE) is None, "the other queue is served"
        assert waits.state is State.QUEUED
        end(app)
        assert waits.get(timeout=DEADLINE) == 1


def test_tasks_that_run_too_long_are_found_in_the_records(app: Umbel) -> None:
    @app.task(name="slow")
    async def slow(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @app.task(name="fine", interruptible=True)
    async def fine() -> None:
        await asyncio.sleep(0.3)

    with working(app, name="w"):
        jobs = app.publish_many([slow.s(0.0), slow.s(0.3)])
        jobs.append(fine.delay())  # type: ignore[arg-type]
        for job in jobs:
            job.get(timeout=DEADLINE)
        found = ask(app, lambda o: o.deploy.audit(longer=0.2, since=3600))
    (task,) = found.tasks
    assert (task.task, task.long, task.runs, task.share) == ("slow", 1, 2, 0.5)
    assert task.jobs == (jobs[1].id,)
    assert ask(app, lambda o: o.deploy.audit(longer=3000, since=3600)).tasks == ()


def test_for_removed_tasks_the_number_of_waiting_jobs_is_reported(app: Umbel) -> None:
    @app.task(name="stays")
    async def stays() -> None: ...

    @app.task(name="gone", queue="other")
    async def gone() -> None: ...

    with working(app, name="w", queues=("default",), lease=PROMPT):
        app.publish_many([gone.s() for _ in range(3)])
        view = status(app, {"stays": fingerprint(stays), "fresh": "1"}, python_version())
    assert view.code is not None
    assert view.code.removed == {"gone": 3}
    assert view.code.new == {"fresh": ("w",)}
    assert view.code.changed == {}
    assert view.code.restart == ("w",)


@pytest.mark.parametrize("concerned", [(), ("w",)], ids=["all", "by name"])
def test_go_waits_for_a_worker_that_has_not_confirmed(
    memory: Umbel, concerned: tuple[str, ...]
) -> None:
    begun, hears = Signal("a deployment"), Signal("the worker's hearing")

    async def deaf(call: Callable[[], Awaitable[Any]]) -> Any:
        found = await call()
        if begun:  # only now: it may have begun while the worker asked
            await hears.seen()
        return found

    with working(memory, name="w", build=with_faults({"read": deaf})):
        begun.set()
        waiting = Waiting(memory, workers=concerned)
        until(lambda: len(waiting.views) > 5, "it to look several times")
        assert all([one.name for one in view.unconfirmed] == ["w"] for view in waiting.views)
        hears.set()
        assert waiting.ended().deployment.state == "go"


def test_a_dead_worker_that_is_not_removed_is_not_waited_for_after_its_lease(
    memory: Umbel,
) -> None:
    async def register(roles: Roles) -> None:
        given: dict[str, Any] = {
            "queues": ("default",),
            "capacity": {"io": 1, "cpu": 1},
            "host": "there",
        }
        entry = WorkerEntry(incarnation="ghost", name="ghost", pid=1, lease=0.5, **given)
        await roles.registry.register(entry)

    ask_backend(memory, register)
    waiting = Waiting(memory)
    view = waiting.ended()
    assert view.deployment.state == "go"
    assert [(one.name, one.lapsed) for one in view.workers] == [("ghost", True)]
    assert [one.name for one in waiting.views[0].unconfirmed] == ["ghost"]


# --- whose it is -----------------------------------------------------------------------------


def test_a_second_deployment_is_refused_with_the_users_name_and_may_take_over(
    memory: Umbel,
) -> None:
    with working(memory, lease=PROMPT):
        first = Waiting(memory, who="anna").ended().deployment
        with pytest.raises(DeploymentUnderWay, match=r"anna .*has been deploying.*--force"):
            Waiting(memory, who="ben").ended()
        with pytest.raises(DeploymentUnderWay, match=r"anna .*you are ben.*--force"):
            end(memory, "ben")
        ended = end(memory, "ben", force=True)
        assert (ended.id, ended.outcome) == (first.id, "ended by ben")


def test_one_that_waits_is_ended_elsewhere_only_by_force_and_learns_of_it(memory: Umbel) -> None:
    runs, go_on = Signal("the firm one"), Signal("its end")

    @memory.task(name="firm")
    def firm() -> None:
        runs.set()
        go_on.wait()

    with working(memory, lease=PROMPT):
        held = firm.delay()
        runs.wait()
        waiting = Waiting(memory)
        until(lambda: waiting.views, "it to wait")
        with pytest.raises(DeploymentUnderWay, match="still waiting"):
            end(memory)
        end(memory, force=True)
        with pytest.raises(DeploymentLost, match="ended meanwhile"):
            waiting.ended()
        go_on.set()
        held.get(timeout=DEADLINE)


def test_a_retry_during_a_deployment_is_no_run_and_does_not_start(memory: Umbel) -> None:
    runs, go_on = Signal("the firm one"), Signal("its end")

    @memory.task(name="firm", retry=3)
    def firm() -> None:
        if not runs:
            runs.set()
            go_on.wait()
            raise OSError("no")

    with working(memory, lease=PROMPT):
        held = firm.delay()
        runs.wait()
        waiting = Waiting(memory)
        until(lambda: waiting.views, "it to wait")
        go_on.set()
        assert waiting.ended().deployment.state == "go"
        assert ask(memory, lambda o: o.jobs(JobFilter(states=(State.RUNNING,)))) == []
        end(memory)
        assert held.get(timeout=DEADLINE) is None
