"""Options of canvases and of their nodes, transactions, results and handles. Rows of CANVAS.md."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from integration.canvas_world import CanvasWorld, label, node_of, running_world, states
from integration.conftest import Place
from integration.running import Gauge, ask_backend
from umbel import Umbel, Unique, chain, chord, chunks, current, fork, group, step
from umbel.errors import ConfigurationError, DuplicateJob, JobCancelled, UmbelError, UnknownJob
from umbel.messages import fresh_id


def records(world: CanvasWorld, handle: Any) -> dict[str, Any]:
    """Return the records of all nodes, and of the root, by path and task."""
    found = {f"{n.path} {n.task}": world.app.handle(n.job).record() for n in handle.graph.nodes}
    return {**found, "root": handle.record()}


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[CanvasWorld]:
    """An application without a worker: its jobs stay as they were published."""
    with closing(Umbel(f"sqlite:///{tmp_path}/u.db?synchronous=off", namespace="one")) as app:
        yield CanvasWorld(app)


def test_queue_and_priority_are_defaults_for_all_nodes(idle: CanvasWorld) -> None:  # row 60
    w = idle
    argument = w.add.s(1, 2)
    canvas = chain(
        group(w.add.s(argument.result, 1), w.double.s(1).options(priority=9)), w.total.s(),
        group(group(w.same.s(), w.same.s()), chain(w.same.s(), w.same.s()).options(priority=7)),
        fork(w.same.s()), w.double.map(), chunks(w.double, [(1,)], 1),
    )  # fmt: skip
    canvas = canvas.on_error(w.handle.s("x")).options(priority=3, queue="special")
    found = records(w, canvas.delay())
    own = {"0.1 double": 9, "2.1.0 same": 7, "2.1.1 same": 7}
    assert {k: r.priority for k, r in found.items() if r.priority != own.get(k, 3)} == {}
    assert {record.queue for record in found.values()} == {"special"}


def test_no_other_writer_fails_a_canvas_in_the_callers_transaction(
    idle: CanvasWorld, tmp_path: Path
) -> None:
    idle.add.delay(0, 0)  # creates the schema
    with (
        closing(sqlite3.connect(tmp_path / "u.db")) as connection,
        closing(sqlite3.connect(tmp_path / "u.db", timeout=0)) as other,
    ):
        refused: list[str] = []

        def write_between(statement: str) -> None:
            """Write from another connection as soon as the transaction has read."""
            if statement.lstrip().lower().startswith("select"):
                try:
                    with other:
                        other.execute("delete from death")
                except sqlite3.OperationalError as error:
                    refused.append(str(error))

        connection.set_trace_callback(write_between)
        handle = chain(idle.add.s(1, 2), idle.double.s()).options(connection=connection).delay()
        connection.set_trace_callback(None)
        connection.commit()
    assert {*refused} == {"database is locked"}
    assert not handle.state.finished


def test_the_root_goes_to_the_queue_of_the_first_task(idle: CanvasWorld) -> None:
    @idle.app.task(name="mail", queue="mail", priority=4)
    async def mail(value: Any = None) -> None: ...

    found = records(idle, (group(group(mail.s(), mail.s()), mail.s()) | mail.s()).delay())
    assert {(record.queue, record.priority) for record in found.values()} == {("mail", 4)}


def test_a_delay_holds_the_heads_only(idle: CanvasWorld) -> None:  # row 61
    w = idle
    argument = w.add.s(5, 5)
    canvas = chain(group(w.add.s(1, 2), w.add.s(argument.result, 1)), w.total.s())
    moment = datetime.now(UTC) + timedelta(hours=1)
    for delayed in (canvas.options(delay=3_600), canvas.options(not_before=moment)):
        found = states(delayed.delay().graph)
        assert found["0.0"] == "scheduled"
        assert found["0.1.add"] == "scheduled"  # it is an argument
        assert found["1"] == "blocked"


def test_the_delay_of_an_inner_node_counts_from_when_it_is_ready(world: CanvasWorld) -> None:
    handle = (world.add.s(1, 2) | world.double.s().options(delay=0.3)).delay()  # row 61
    assert handle.get(30) == 6
    graph = world.ended(handle)
    first, second = graph.tasks()
    assert (second.started or 0) >= (first.finished or 0) + 0.29


@pytest.mark.parametrize(
    "expires", [0.5, datetime.now(UTC) + timedelta(seconds=0)], ids=["seconds", "moment"]
)
def test_expiry_is_one_moment_for_all_nodes(idle: CanvasWorld, expires: Any) -> None:
    handle = chain(idle.add.s(1, 2), idle.same.s(), idle.same.s()).options(expires=expires).delay()
    found = {record.expires for key, record in records(idle, handle).items() if key != "root"}
    assert len(found) == 1
    assert None not in found


def test_a_graph_that_expired_ends(world: CanvasWorld) -> None:
    handled = label()
    canvas = chain(world.add.s(1, 2), world.same.s()).options(expires=0.01, delay=0.5)
    handle = canvas.on_error(world.handle.s(handled)).delay()
    with pytest.raises(UmbelError, match="expired"):
        handle.get(30)
    world.ended(handle)
    assert len(world.notes[handled]) == 1


@pytest.mark.parametrize(
    "name",
    ["timeout", "retry", "track", "keep", "affinity", "stay", "worker"],
)
def test_other_options_of_a_canvas_are_refused(idle: CanvasWorld, name: str) -> None:
    value: Any = {"timeout": 1, "retry": 1, "track": "state", "keep": 1, "stay": True}.get(
        name, "x"
    )
    for canvas in (chain(idle.add.s(1, 2)), group(idle.add.s(1, 2)), idle.double.map([1])):
        with pytest.raises(ConfigurationError, match=f"{name}.*signatures"):
            canvas.options(**{name: value})


@pytest.mark.parametrize("name", ["id", "connection", "unique"])
def test_options_of_the_whole_are_refused_on_a_part(idle: CanvasWorld, name: str) -> None:
    value: Any = fresh_id() if name == "id" else "x"
    inner = chain(idle.add.s(1, 2), idle.same.s()).options(**{name: value})
    with pytest.raises(ConfigurationError, match=f"node 0, {name}: give it to the whole"):
        group(inner).delay()


# --- gates -------------------------------------------------------------------------------------


def test_a_node_waits_in_gates_and_does_not_arrive(tmp_path: Path) -> None:  # row 62
    from umbel import Limit

    gauges = {name: Gauge() for name in ("limit", "token", "pool")}

    def prepare(world: CanvasWorld) -> None:
        app = world.app
        pool = app.pool(f"p{fresh_id()}", ["first"])

        def declare(name: str, **options: Any) -> Any:
            @app.task(name=name, **options)
            async def gated(value: int) -> int:
                with gauges[name]:
                    await asyncio.sleep(0.01)
                return value

            return gated

        world.limited = declare("limit", limit=2)  # type: ignore[attr-defined]
        world.token = declare("token", limit=Limit(1, token="value"))  # type: ignore[attr-defined]
        world.pooled = declare("pool", pool=pool)  # type: ignore[attr-defined]

    with running_world(f"sqlite:///{tmp_path}/u.db?synchronous=off", prepare) as world:
        w: Any = world
        canvas = group(
            group([w.limited.s(n) for n in range(6)]),
            w.numbers.s(5) | w.limited.map(),
            group([w.same.s(7) | w.token.s() for _ in range(4)]),
            w.same.s([7, 7, 8]) | w.token.map(),
            w.token.s(w.same.s(7).result),
            w.numbers.s(3) | w.pooled.map(),
            w.same.s(1) | w.pooled.s(),
        )
        want = [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4], [7] * 4, [7, 7, 8], 7, [0, 1, 2], 1]
        assert canvas.delay().get(60) == want
        assert gauges["limit"].most <= 2
        assert gauges["token"].most <= 2  # one for each of two values
        assert gauges["pool"].most == 1


def test_chunks_of_a_task_with_tokens_are_refused(idle: CanvasWorld) -> None:
    from umbel import Limit

    @idle.app.task(name="token", limit=Limit(1, token="value"))
    async def token(value: int) -> int:
        return value

    for calls in ([(1,)], idle.numbers.s(3)):
        with pytest.raises(ConfigurationError, match="use map or starmap"):
            chunks(token, calls, 1).delay()


def test_nodes_run_on_the_worker_that_they_name(tmp_path: Path) -> None:
    def prepare(world: CanvasWorld) -> None:
        @world.app.task(name="grows")
        async def grows(value: int) -> Any:
            return current.replace(group(group(world.add.s(value, 1)), world.same.s(value)))

        @world.app.task(name="keyed", affinity="key")
        async def keyed(key: str) -> str:
            return key

        world.grows, world.keyed = grows, keyed  # type: ignore[attr-defined]

    url = f"sqlite:///{tmp_path}/u.db?synchronous=off"
    with running_world(url, prepare, index=3) as world:
        w: Any = world
        canvas = chain(
            w.same.options(worker=3).s(1), w.grows.options(worker=3).s(), w.same.s(),
        )  # fmt: skip
        assert canvas.delay().get(30) == [[2], 1]
        with pytest.raises(ConfigurationError, match=r"worker of map.*affinity"):
            (w.numbers.s(3) | w.double.options(worker=3).map()).delay()
        assert w.double.options(worker=3).map([1, 2]).delay().get(30) == [2, 4]
        with pytest.raises(ConfigurationError, match="node 0, worker='worker': give the index"):
            (w.same.options(worker="worker").s(1) | w.same.s()).delay()
        assert (w.same.s("k") | w.keyed.s() | w.keyed.s()).delay().get(30) == "k"
        assert group(w.keyed.s("a"), w.keyed.s(w.same.s("b").result)).delay().get(30) == ["a", "b"]
        assert (w.same.s(["x", "y"]) | w.keyed.map()).delay().get(30) == ["x", "y"]


# --- unique, id, transactions ------------------------------------------------------------------


def test_a_unique_key_is_held_until_the_graph_ends(world: CanvasWorld) -> None:  # row 63
    held, key = label(), label()
    canvas = chain(world.held.s(1, held), world.same.s()).options(unique=key)
    first = canvas.delay()
    with pytest.raises(DuplicateJob) as refused:
        canvas.delay()
    assert refused.value.existing == first.id
    again = canvas.options(unique=Unique(key, on_conflict="return")).delay()
    assert again.id == first.id
    with pytest.raises(DuplicateJob):
        world.same.options(unique=key).delay()
    world.signal(held).set()
    assert first.get(30) == 1
    assert canvas.delay().get(30) == 1
    with pytest.raises(ConfigurationError, match="replace"):
        canvas.options(unique=Unique(key, on_conflict="replace")).delay()


def test_the_same_id_twice_publishes_once(world: CanvasWorld) -> None:  # row 63
    noted, job = label(), fresh_id()
    canvas = group(world.noted.s(1, noted), world.noted.s(2, noted)).options(id=job)
    assert canvas.delay().id == job
    assert canvas.delay().get(30) == [1, 2]
    assert canvas.delay().get(30) == [1, 2]
    assert sorted(world.notes[noted]) == [1, 2]
    signed = world.noted.s(3, noted).on_error(world.handle.s(noted)).options(id=fresh_id())
    assert [signed.delay().get(30), signed.delay().get(30)] == [3, 3]
    assert len(world.notes[noted]) == 3


def test_a_large_unique_canvas_is_published_once(world: CanvasWorld) -> None:
    key = label()
    canvas = chain(
        group([world.add.s(n, n).options(delay=600) for n in range(6_000)]), world.total.s()
    ).options(unique=key)
    first = canvas.delay()
    with pytest.raises(DuplicateJob):
        canvas.delay()
    assert first.graph.progress == (0, 6_001)
    assert {str(node.state) for node in first.graph.tasks()} == {"scheduled", "blocked"}
    assert first.cancel()


def test_a_canvas_is_part_of_the_callers_transaction(place: Place) -> None:  # row 64
    world = CanvasWorld(place.app())
    canvas = chord([world.add.s(1, 2), world.add.s(3, 4)], world.total.s())
    with closing(place.connect()) as connection:
        rolled_back = canvas.options(connection=connection).delay()
        connection.rollback()
        committed = canvas.options(connection=connection).delay()
        single = world.add.s(world.add.s(1, 2)).options(connection=connection).delay(1)
        connection.commit()
        with pytest.raises(UnknownJob):
            _ = rolled_back.state
        assert len(committed.graph.tasks()) == 3
        assert len(single.graph.tasks()) == 2
        with pytest.raises(ConfigurationError, match="unique"):
            canvas.options(connection=connection, unique="x").delay()
        with pytest.raises(ConfigurationError, match="10,000"):
            group([world.add.s(1, 1)] * 6_000).options(connection=connection).delay()


def test_canvases_are_published_by_tasks_and_steps_once(tmp_path: Path) -> None:
    def prepare(world: CanvasWorld) -> None:
        def publish(label: str) -> str:
            return chain(world.noted.s(1, label), world.same.s()).delay().id

        @world.app.task(name="in_task")
        def in_task(label: str) -> str:
            return publish(label)

        @world.app.task(name="in_async_task")
        async def in_async_task(label: str) -> str:
            return (await chain(world.noted.s(1, label), world.same.s()).adelay()).id

        @world.app.task(name="in_steps", retry=3)
        def in_steps(label: str) -> str:
            found = step.named("publish")(publish, label)
            if current.job.attempt == 1:
                raise ConnectionError
            return found

        @world.app.task(name="held_back", publishing="held")
        def held_back(label: str, in_step: bool) -> str:
            return step.named("publish")(publish, label) if in_step else publish(label)

        world.tasks = (in_task, in_async_task, in_steps, held_back)  # type: ignore[attr-defined]

    with running_world(f"sqlite:///{tmp_path}/u.db?synchronous=off", prepare) as world:
        in_task, in_async_task, in_steps, held_back = world.tasks  # type: ignore[attr-defined]
        for call in (in_task.s, in_async_task.s, in_steps.s, lambda one: held_back.s(one, True)):
            noted = label()
            graph = world.app.handle(call(noted).delay().get(30))
            assert graph.get(30) == 1
            assert world.notes[noted] == [1]
        refused = held_back.options(retry=0).delay(label(), False)
        with pytest.raises(ConfigurationError, match=r"current\.replace"):
            refused.get(30)


# --- results and handles -----------------------------------------------------------------------


def test_a_result_is_kept_for_nodes_that_need_it(world: CanvasWorld) -> None:  # row 67
    for track in ("state", "failures"):
        kept: Any = world.add.options(track=track)
        canvas = kept.s(1, 2) | group(kept.s(1), kept.s(2)) | world.total.s()
        assert canvas.delay().get(30) == 9
        assert group(kept.s(1, 2), kept.s(3, 4)).delay().get(30) == [3, 7]


def test_a_handle_made_from_an_id_has_everything(world: CanvasWorld) -> None:  # rows 68, 69
    held = label()
    published = (world.add.s(1, 2) | world.held.s(held) | world.double.s()).delay()
    handle = world.app.handle(published.id)
    world.noted_at(f"{held} started")
    assert handle.progress == (1, 3)
    assert states(handle.graph) == {"0": "succeeded", "1": "running", "2": "blocked"}
    assert world.app.handle(node_of(handle.graph, "add").job).get(30) == 3
    world.signal(held).set()
    assert handle.get(30) == 6
    assert [world.app.handle(node.job).get(30) for node in handle.graph.tasks()] == [3, 3, 6]
    other = (world.held.s(1, label()) | world.same.s()).delay()
    assert world.app.handle(other.id).cancel()
    with pytest.raises(JobCancelled):
        world.app.handle(other.id).get(30)


def test_a_graph_is_awaited_in_async_code(world: CanvasWorld) -> None:
    async def use() -> list[Any]:
        first = await chain(world.add.s(1, 2), world.double.s()).adelay()
        second = await group(world.add.s(1), world.same.s()).adelay(1)
        third = await world.add.s(1).adelay(2)
        return [await first, await second.aget(timeout=30), await third]

    assert asyncio.run(use()) == [6, [2, 1], 3]


def test_records_of_nodes_stay_as_long_as_the_graph(world: CanvasWorld) -> None:  # row 68
    held = label()
    short: Any = world.add.options(keep=0.001)
    handle = (short.s(1, 2) | world.held.s(held) | group(world.same.s(), world.same.s())).delay()
    world.noted_at(f"{held} started")
    first = node_of(handle.graph, "add").job
    prune = {"older_than": 0.0, "keep": 0, "limit": 1_000}
    ask_backend(world.app, lambda roles: roles.records.prune(**prune))
    assert world.app.handle(first).get(30) == 3
    world.signal(held).set()
    assert handle.get(30) == [3, 3]
