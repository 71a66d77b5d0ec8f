"""Jobs that wait for jobs, run by a real worker, and seen by operators."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from backends import nats, rabbitmq, redis
from command_line import Shell
from running import Places, ask, ask_backend, until, working

from umbel import State, Umbel, poisonous
from umbel.backends import JobFilter
from umbel.messages import Body, Edge, Envelope, Fire, Join, Publication, Wait, fresh_id


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    places = Places()
    yield places
    places.close()


@pytest.fixture(params=["file", "postgres", "redis", "rabbitmq+postgres", "nats+redis"])
def app(request: pytest.FixtureRequest, places: Places, tmp_path: Path) -> Iterator[Umbel]:
    namespace = f"b{fresh_id()[-12:]}"
    transport, _, kind = request.param.rpartition("+")
    with ExitStack() as stack:
        is_redis = kind == "redis"
        store = stack.enter_context(redis(namespace)) if is_redis else places.url(kind, tmp_path)
        broker = store
        if transport == "rabbitmq":
            broker = stack.enter_context(rabbitmq())
        elif transport == "nats":
            broker = stack.enter_context(nats(namespace))
        how: Any = {"namespace": namespace, "deadline": 15.0, "backlog": "none"}
        app = Umbel(broker, store=store, **how)
        stack.callback(app.close)
        yield app


def job(app: Umbel, task: str, argument: Any = None, group: str = "g", **options: Any) -> Envelope:
    args = b"[]" if argument is None else f"[{str(argument).lower()}]".encode()
    body = Body("application/json", b'{"args":' + args + b',"kwargs":{}}')
    settings: Any = {"namespace": app.settings.namespace, "headers": {"graph": group}, **options}
    return Envelope(id=fresh_id(), subject=task, body=body, kind="io", **settings)


def after(parts: list[Envelope], waiting: list[Envelope], fire: Fire = "all") -> Publication:
    """Return these jobs, of which the last ones wait for the first ones."""
    join = Join(fresh_id(), "g", fire)
    return Publication(
        envelopes=(*parts, *waiting),
        joins=(join,),
        edges=tuple(Edge(one.id, join.id, place) for place, one in enumerate(parts)),
        waits=tuple(Wait(one.id, join.id) for one in waiting),
    )


def states(app: Umbel, jobs: list[Envelope]) -> list[State]:
    return [ask(app, lambda o, id=one.id: o.job(id)).state for one in jobs]  # type: ignore[misc]


def test_a_job_runs_when_the_jobs_that_it_waits_for_have_ended(app: Umbel) -> None:
    ran: list[str] = []

    @app.task(name="part")
    async def part() -> None:
        ran.append("part")

    @app.task(name="body")
    async def body() -> None:
        ran.append("body")

    parts, waiting = [job(app, "part") for _ in range(3)], [job(app, "body")]
    ask_backend(app, lambda roles: roles.joins.add(after(parts, waiting)))
    assert states(app, waiting) == [State.BLOCKED]
    with working(app):
        until(lambda: states(app, waiting) == [State.SUCCEEDED], "the last job to run")
    assert ran == ["part", "part", "part", "body"]


def test_a_job_that_cannot_run_any_more_ends_within_a_moment(app: Umbel) -> None:
    """The worker that settles the failure also advances the joins, without waiting for upkeep."""

    @app.task(name="part")
    async def part() -> None:
        with poisonous():
            raise ValueError

    parts, waiting = [job(app, "part")], [job(app, "part") for _ in range(3)]
    ask_backend(app, lambda roles: roles.joins.add(after(parts, waiting, "success")))
    with working(app, lease=3600.0):  # upkeep runs once in a third of it
        until(lambda: states(app, waiting) == [State.CANCELLED] * 3, "the others to end")


def test_a_paused_job_expires_in_time_and_completes_its_join(app: Umbel) -> None:
    @app.task(name="body")
    async def body() -> None: ...

    ask(app, lambda operations: operations.pause("queue", "still", "no work"))
    parts = [job(app, "body", queue="still", expires=time.time() + 0.05)]
    waiting = [job(app, "body")]
    ask_backend(app, lambda roles: roles.joins.add(after(parts, waiting)))
    with working(app, queues=("default", "still"), lease=1.5):
        until(lambda: states(app, waiting) == [State.SUCCEEDED], "the last job to run")
    assert states(app, parts) == [State.EXPIRED]


def test_operators_see_blocked_jobs(app: Umbel) -> None:
    parts, waiting = [job(app, "part")], [job(app, "body") for _ in range(2)]
    ask_backend(app, lambda roles: roles.joins.add(after(parts, waiting)))
    (queue,) = ask(app, lambda operations: operations.queues())
    assert (queue.queued, queue.blocked) == (1, 2)
    found = ask(app, lambda operations: operations.jobs(JobFilter(states=(State.BLOCKED,))))
    assert {record.id for record in found} == {one.id for one in waiting}


def test_the_command_line_shows_blocked_jobs(shell: Shell) -> None:
    assert "blocked" not in shell.say("queues")
    app = Umbel(f"sqlite:///{shell.folder}/umbel.db")
    try:
        parts, waiting = [job(app, "add")], [job(app, "add")]
        ask_backend(app, lambda roles: roles.joins.add(after(parts, waiting)))
    finally:
        app.close()
    assert "blocked" in shell.say("queues")
    assert [one["id"] for one in shell.ask("jobs", "list", "--state", "blocked")] == [waiting[0].id]
