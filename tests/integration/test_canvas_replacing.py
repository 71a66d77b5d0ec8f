"""Tasks that are replaced by canvases, and tasks that end their chain early. Rows of CANVAS.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.backends import opened
from integration.canvas_world import CanvasWorld, label, node_of, running_world, states
from integration.running import until
from umbel import Retry, State, chain, chord, chunks, current, fork, group
from umbel.errors import JobCancelled, UmbelError
from umbel.graphs import mermaid, svg, tree


def declare(world: CanvasWorld) -> None:
    """Add tasks that are replaced."""
    app, add = world.app, world.add

    @app.task(name="plus_one_by_replacing", retry=0)
    async def plus(value: Any) -> Any:
        return current.replace(add.s(value, 1))

    @app.task(name="plus_in_thread")
    def plus_in_thread(value: Any) -> Any:
        return current.replace(chain(add.s(value, 1), world.same.s()))

    @app.task(name="spread")
    async def spread(value: int) -> Any:
        return current.replace(group(add.s(value, 1), add.s(value, 2)))

    @app.task(name="spread_wide")
    async def spread_wide(value: int, count: int) -> Any:
        return current.replace(group([add.s(value, n) for n in range(count)]))

    @app.task(name="down")
    async def down(count: int) -> Any:
        return current.replace(down.s(count - 1)) if count else "bottom"

    @app.task(name="replaced_by_failure")
    async def replaced_by_failure(value: Any = None, handled: str = "") -> Any:
        failing = world.fail.s()
        return current.replace(failing.on_error(world.handle.s(handled)) if handled else failing)

    @app.task(name="misused", retry=0)
    async def misused(value: Any = None, way: str = "") -> Any:
        if way == "empty":
            return current.replace(chain())
        if way == "bare":
            return add.s(1, 2)
        if way == "not returned":
            current.replace(add.s(1, 2))
            return 5
        if way == "handle":
            return current.replace(add.delay(1, 2))  # type: ignore[arg-type]
        if way == "empty group":
            return current.replace(group())
        return current.replace(add.s("x", 1))  # type: ignore[arg-type]

    @app.task(name="replaced_after_failures", retry=Retry(2, first=0.01))
    async def after_failures(value: int) -> Any:
        if current.job.attempt < 3:
            raise ConnectionError
        return current.replace(world.flaky.s(value, 3))

    @app.task(name="replaced_by_map")
    async def by_map(count: int) -> Any:
        return current.replace(world.numbers.s(count) | world.double.map() | world.total.s())

    @app.task(name="replaced_by_held")
    async def by_held(value: Any, name: str) -> Any:
        return current.replace(world.held.s(value, name))

    @app.task(name="publishes_held", publishing="held")
    async def publishes_held(value: Any, name: str) -> Any:
        await world.noted.adelay(value, name)
        return current.replace(add.s(value, 1))

    @app.task(name="finish_chain")
    async def finish_chain(value: Any) -> Any:
        return current.replace(chain(world.finish.s(value), add.s(1000)))

    tasks = {
        "plus": plus, "plus_in_thread": plus_in_thread, "spread": spread, "down": down,
        "spread_wide": spread_wide, "replaced_by_failure": replaced_by_failure, "misused": misused,
        "after_failures": after_failures, "by_map": by_map, "by_held": by_held,
        "publishes_held": publishes_held, "finish_chain": finish_chain,
    }  # fmt: skip
    for name, task in tasks.items():
        setattr(world, name, task)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("replacing") / "umbel.db"
    with running_world(f"sqlite:///{path}?synchronous=off", declare) as world:
        yield world


def replacements(w: Any) -> dict[str, tuple[Any, Any]]:
    """Return canvases with tasks that are replaced or finish, and their results."""
    return {
        "alone": (w.plus.s(1), 2),
        "first": (w.plus.s(1) | w.add.s(10), 12),
        "middle": (w.same.s(1) | w.plus.s() | w.add.s(10), 12),
        "last": (w.same.s(1) | w.plus_in_thread.s(), 2),
        "in a group": (group(w.same.s(0), w.plus.s(1), w.same.s(9)), [0, 2, 9]),
        "in a header": (chord([w.same.s(5), w.plus.s(1)], w.total.s()), 7),
        "as a body": (chord([w.same.s(5)], w.total.s() | w.plus.s()), 6),
        "in a map": (w.plus.map([1, 2, 3]), [2, 3, 4]),
        "in a map over a result": (w.numbers.s(3) | w.plus.map() | w.total.s(), 6),
        "as an argument": (w.add.s(w.plus.s(1).result, w.plus.s(2)), 5),
        "by a group in a chain": (w.same.s(1) | w.spread.s() | w.total.s(), 5),
        "by a group in a group": (group(w.spread.s(1), w.same.s(0)), [[2, 3], 0]),
        "by a group, last": (w.same.s(1) | w.spread.s(), [2, 3]),
        "by a group in a map": (w.spread.map([1, 2]), [[2, 3], [3, 4]]),
        "again and again": (w.down.s(8) | w.same.s(), "bottom"),
        "by a map over a result": (w.by_map.s(4) | w.add.s(1), 13),
        "by an empty group": (w.misused.s(way="empty group") | w.same.s(), []),
        "in a fork": (w.same.s(1) | fork(w.plus.s()) | w.plus.s(), 2),
        "in collect": (group(w.plus.s(1), w.spread.s(1), errors="collect"), [2, [2, 3]]),
        "finish first": (w.finish.s(5) | w.add.s(1) | w.add.s(1), 5),
        "finish middle": (w.same.s(5) | w.finish.s() | w.double.s(), 5),
        "finish last": (w.same.s(5) | w.finish.s(), 5),
        "finish alone": (w.finish.s(5), 5),
        "not finished": (w.finish.s(5, when=False) | w.add.s(1), 6),
        "finish before .si": (w.finish.s(5) | w.add.si(1, 1), 5),
        "finish before .si twice": (w.finish.s(5) | w.add.si(1, 1) | w.add.si(1, 1), 5),
        "finish before a group": (w.finish.s(5) | group(w.add.s(1), w.add.si(1, 1)), 5),
        "finish before an empty group": (w.finish.s(5) | group() | w.total.s(), 5),
        "finish before an empty last": (w.finish.s(5) | group(), 5),
        "finish before a chord": (w.finish.s(5) | chord([w.add.s(1)], w.total.s()), 5),
        "finish before a map": (w.finish.s([5]) | w.double.map() | w.total.s(), [5]),
        "finish before given items": (w.finish.s(5) | w.double.map([1, 2]) | w.total.s(), 5),
        "finish before chunks": (w.finish.s(5) | chunks(w.add, [(1, 2)], 1) | w.total.s(), 5),
        "finish before nested groups": (w.finish.s(5) | group(group(w.add.s(1))) | w.same.s(), 5),
        "finish before collect": (w.finish.s(5) | group(w.add.s(1), errors="collect"), 5),
        "finish in a member": (group(w.finish.s(5) | w.add.s(1), w.add.s(1, 1)), [5, 2]),
        "finish as a member": (w.same.s(5) | group(w.finish.s(), w.add.s(1)) | w.total.s(), 11),
        "finish as an item": (w.finish.map([1, 2]) | w.total.s(), 3),
        "finish as an item of a result": (w.numbers.s(3) | w.finish.map() | w.total.s(), 3),
        "finish in a header": (chord([w.finish.s(5) | w.add.s(1)], w.total.s()), 5),
        "finish in an inner chain": (
            chain(w.same.s(1), group(chain(w.finish.s(), w.add.s(9))), w.total.s(), w.add.s(1)), 2,
        ),
        "finish in a fork": (w.same.s(1) | fork(w.finish.s() | w.same.s()) | w.add.s(1), 2),
        "finish before a fork": (w.finish.s(1) | fork(w.same.s()) | w.add.s(1), 1),
        "finish in a replacement": (w.finish_chain.s(5) | w.add.s(1), 6),
        "finish with another type": (w.finish.s("text") | w.add.s(1), "text"),
        "finish with nothing": (w.finish.s(None) | w.add.s(1), None),
    }  # fmt: skip


def check(world: Any) -> None:
    handles = {name: (canvas.delay(), want) for name, (canvas, want) in replacements(world).items()}
    found: dict[str, Any] = {}
    for name, (handle, want) in handles.items():
        try:
            value = handle.get(timeout=60)
        except UmbelError as error:
            value = error
        if value != want:
            found[name] = value
    assert found == {}


def test_a_replacement_takes_the_place_of_its_task(world: Any) -> None:  # rows 53 to 55
    check(world)


@pytest.mark.parametrize("kind", ["postgres", "redis", "rabbitmq+postgres"])
def test_replacing_and_finishing_work_on_each_backend(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as (backend, _):
        store = {} if backend.broker == backend.store else {"store": backend.store}
        settings = {"namespace": backend.namespace, **store}
        with running_world(backend.broker, declare, settings=settings) as world:
            check(world)


def test_a_job_that_is_no_node_is_replaced(world: Any) -> None:  # row 53
    assert world.plus.delay(1).get(30) == 2
    assert world.spread.delay(1).get(30) == [2, 3]
    assert world.down.delay(5).get(30) == "bottom"
    assert group(world.spread.delay(1), world.same.s(1)).delay().get(30) == [[2, 3], 1]


def test_too_many_replacements_fail_and_name_the_limit(world: Any) -> None:  # row 55
    with pytest.raises(UmbelError, match="was replaced 50 times"):
        (world.down.s(200) | world.same.s()).delay().get(60)


@pytest.mark.parametrize("wrong", [False, True])
def test_too_many_replacements_of_a_plain_job_fail(world: Any, wrong: bool) -> None:
    if wrong:
        with pytest.raises(UmbelError, match="was replaced"):
            world.down.delay(200).get(60)
    else:
        assert world.down.delay(20).get(60) == "bottom"


def test_handlers_of_a_task_cover_what_replaces_it(world: Any) -> None:  # row 56
    node, scope, own = label(), label(), label()
    replaced = world.replaced_by_failure.s(None, own).on_error(world.handle.s(node))
    handle = (replaced | world.same.s()).on_error(world.handle.s(scope)).delay()
    with pytest.raises(ValueError, match="no"):
        handle.get(30)
    world.ended(handle)
    assert [len(world.notes[one]) for one in (node, scope, own)] == [1, 1, 1]


def test_a_replacement_costs_no_attempt(world: Any) -> None:  # row 57
    handle = (world.after_failures.s(7) | world.same.s()).delay()
    assert handle.get(30) == 7
    record = world.app.handle(node_of(world.ended(handle), "replaced_after_failures").job).record()
    assert [one.ended for one in record.attempts] == ["retry", "retry", "succeeded"]


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("empty", "at least one signature"),
        ("bare", r"write return current\.replace"),
        ("not returned", r"write return current\.replace"),
        ("handle", "give a signature or a canvas"),
        ("wrong", "must be int"),
    ],
)
def test_a_wrong_replacement_fails_with_the_remedy(world: Any, way: str, words: str) -> None:
    for canvas in (world.misused.s(way=way), world.misused.s(way=way) | world.same.s()):  # row 58
        handle = canvas.delay()
        with pytest.raises(Exception, match=words):
            handle.get(30)


def test_too_wide_a_replacement_fails_with_the_remedy(world: Any) -> None:  # row 59
    assert len((world.spread_wide.s(0, 2_000) | world.same.s()).delay().get(60)) == 2_000
    with pytest.raises(UmbelError, match="chunks"):
        (world.spread_wide.s(0, 6_000) | world.total.s()).delay().get(60)


def test_the_total_grows_with_a_replacement(world: Any) -> None:  # row 71
    handle = (world.same.s(1) | world.spread.s() | world.total.s()).delay()
    assert handle.get(30) == 5
    graph = world.ended(handle)
    assert graph.progress == (5, 5)
    assert [node.task for node in graph.tasks()].count("add") == 2


def test_skipped_nodes_do_not_run(world: Any) -> None:
    ran = label()
    canvas = chain(
        world.finish.s(5), world.noted.s(ran), world.noted.si(1, ran), group(world.noted.s(ran)),
        fork(world.noted.s(ran)), world.noted.s(ran),
    )  # fmt: skip
    handle = canvas.on_error(world.handle.s(ran)).delay()
    assert handle.get(30) == 5
    world.ended(handle)
    assert not world.notes[ran]


def test_what_a_replaced_job_holds_is_published(world: Any) -> None:
    noted = label()
    assert (world.publishes_held.s(1, noted) | world.same.s()).delay().get(30) == 2
    assert world.noted_at(noted) == [1]


def test_a_graph_is_cancelled_with_its_replacements(world: Any) -> None:
    held = label()
    handle = (world.by_held.s(1, held) | world.same.s()).delay()
    world.noted_at(f"{held} started")
    assert handle.cancel()
    with pytest.raises(JobCancelled):
        handle.get(30)
    graph = world.ended(handle)
    assert node_of(graph, "held").state is State.CANCELLED
    assert not world.notes[f"{held} ended"]


def test_a_group_that_fails_cancels_replacements_of_its_members(world: Any) -> None:
    held, failing = label(), label()
    handle = group(
        world.by_held.s(1, held),
        chain(world.held.s(None, failing), world.fail.s()),
        errors="cancel",
    ).delay()
    world.noted_at(f"{held} started")
    world.signal(failing).set()
    with pytest.raises(ValueError, match="no"):
        handle.get(30)
    graph = world.ended(handle)
    (replaced,) = [node for node in graph.tasks() if node.task == "held" and node.path == "0.0"]
    assert replaced.state is State.CANCELLED
    assert not world.notes[f"{held} ended"]


def test_a_replacement_is_drawn_inside_its_node(world: Any) -> None:  # row 93
    graph = world.ended((world.same.s(1) | world.spread.s() | world.total.s()).delay())
    assert [*states(graph)] == ["0", "1", "1.0", "1.1", "2"]
    assert [node.path for _, node in tree(graph)] == ["0", "1", "1.0", "1.1", "2"]
    lines = mermaid(graph).splitlines()
    first, last = lines.index('  subgraph s0["1 spread"]'), lines.index("  end")
    assert [line.split('"')[1] for line in lines[first + 1 : last]] == [
        "1 spread", "1.0 add", "1.1 add",
    ]  # fmt: skip
    assert {"  n0 --> n1", "  n1 --> n2", "  n1 --> n3", "  n3 --> n4"} <= {*lines}
    assert svg(graph).count('class="subgraph succeeded"') == 1
    assert graph.find("1").job in graph.critical_path()


def test_replacements_of_replacements_are_drawn_inside_one_another(world: Any) -> None:  # row 93
    graph = world.ended((world.same.s(12) | world.down.s()).delay())
    inner = graph.find("1.0.0")
    assert [one.path for one in inner.inside] == ["1", "1.0"]
    deepest = max(graph.tasks(), key=lambda node: len(node.path))
    assert deepest.path.count(".") == 12
    assert len(deepest.inside) == 8, "frames in frames have a limit"
    assert svg(graph).count('class="subgraph succeeded"') == 8


def test_the_jobs_of_a_map_are_drawn_inside_it(world: Any) -> None:  # row 93
    graph = world.ended((world.numbers.s(3) | world.double.map() | world.total.s()).delay())
    assert [node.path for node in graph.tasks() if node.inside] == ["1.0.0", "1.0.1", "1.0.2"]
    assert {node.inside[-1].name for node in graph.tasks() if node.inside} == {"double"}
    assert svg(graph).count('class="subgraph succeeded"') == 1
    until(lambda: graph.state is State.SUCCEEDED, "the end")
