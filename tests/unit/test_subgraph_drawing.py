"""Sub-workflows are drawn around their nodes, and nothing else is drawn there."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, count
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel import Umbel, chain, group
from umbel.graphs import Graph, GraphNode, mermaid, svg, tree
from umbel.messages import State
from umbel.messages.graphs import Subgraph
from umbel.tasks.workflow import Workflow

_SVG = "{http://www.w3.org/2000/svg}"


class Flow(NamedTuple):
    """A workflow: how its parts are combined, and for each the earlier ones that it uses."""

    form: str
    parts: list[tuple[Flow | None, list[int]]]
    """None is a task."""

    def tasks(self, name: str) -> Counter[str]:
        """Return how many nodes there are of the task of each workflow."""
        found = Counter({name: 1}) if self.form == "arguments" else Counter[str]()
        for number, (inner, _) in enumerate(self.parts):
            found += Counter({name: 1}) if inner is None else inner.tasks(f"{name}-{number}")
        return found

    def flows(self, name: str) -> Iterator[tuple[str, Counter[str]]]:
        """Return the sub-workflows with their tasks."""
        for number, (inner, _) in enumerate(self.parts):
            if inner is not None:
                own = f"{name}-{number}"
                yield own, inner.tasks(own)
                yield from inner.flows(own)


def _flows(depth: int) -> st.SearchStrategy[Flow]:
    inner = st.none() if depth == 0 else st.none() | _flows(depth - 1)
    parts = st.tuples(inner, st.lists(st.integers(0, 3), max_size=2))
    forms = st.sampled_from(["arguments", "chain", "group"])
    return st.builds(Flow, forms, st.lists(parts, min_size=1, max_size=4))


_APP = Umbel("sqlite:///:memory:")
_NUMBERS = count()


def declare(flow: Flow, name: str) -> Workflow[..., Any]:
    """Declare a workflow and those in it. Each has a task of its own name."""
    inner = [
        None if one is None else declare(one, f"{name}-{number}")
        for number, (one, _) in enumerate(flow.parts)
    ]

    @_APP.task(name=name)
    def task(*values: Any) -> Any: ...

    @_APP.workflow(name=name)
    def build(value: Any) -> Any:
        made: list[Any] = []
        for one, (_, used) in zip(inner, flow.parts, strict=True):
            chosen: list[Any] = [made[number].result for number in used if number < len(made)]
            values = [*chosen, value] if flow.form == "arguments" else value
            made.append((one or task).s(values))
        if flow.form == "arguments":
            return task.s([one.result for one in made])
        return chain(*made) if flow.form == "chain" else group(*made)

    return build


class Shape(NamedTuple):
    """A box or a frame of a drawing."""

    path: str
    name: str
    x: float
    y: float
    width: float
    height: float

    def contains(self, other: Shape) -> bool:
        return (
            self.x < other.x
            and self.y < other.y
            and other.x + other.width < self.x + self.width
            and other.y + other.height < self.y + self.height
        )

    def touches(self, other: Shape) -> bool:
        return (
            self.x <= other.x + other.width
            and other.x <= self.x + self.width
            and self.y <= other.y + other.height
            and other.y <= self.y + self.height
        )


def shapes(text: str, kind: str) -> list[Shape]:
    """Return the boxes or frames of a drawing that is a file."""
    found = []
    for one in ElementTree.fromstring(text).iter(f"{_SVG}g"):
        if one.get("class", "").split()[0] == kind:
            path, name = str(one.findtext(f"{_SVG}title")).split(", ")[0].split(" ")
            rect = one.find(f"{_SVG}rect")
            assert rect is not None
            places = [float(rect.get(key, "")) for key in ("x", "y", "width", "height")]
            found.append(Shape(path, name, *places))
    return found


@given(_flows(2))
def test_each_frame_has_the_nodes_of_its_sub_workflow_and_no_others(flow: Flow) -> None:
    name = f"flow{next(_NUMBERS)}"
    drawing = svg(declare(flow, name).shape, alone=True)
    nodes, frames = shapes(drawing, "node"), shapes(drawing, "subgraph")
    assert Counter(one.name for one in nodes) == flow.tasks(name)
    found = {one.name: Counter(node.name for node in nodes if one.contains(node)) for one in frames}
    assert found == dict(flow.flows(name))
    for frame in frames:
        for other in (*nodes, *frames):
            is_apart = not frame.touches(other)
            assert frame is other or is_apart or frame.contains(other) or other.contains(frame)
    assert not any(one.touches(other) for one, other in combinations(nodes, 2))
    _, _, width, height = map(float, str(ElementTree.fromstring(drawing).get("viewBox")).split())
    page = Shape("", "", 0, 0, width, height)
    assert all(page.contains(one) for one in (*nodes, *frames))


@given(_flows(2))
def test_a_subgraph_of_mermaid_has_the_nodes_of_its_sub_workflow(flow: Flow) -> None:
    name = f"flow{next(_NUMBERS)}"
    opened: list[str] = []
    found: dict[str, Counter[str]] = {}
    for line in mermaid(declare(flow, name).shape).splitlines():
        words = line.replace('"', " ").split()
        if words[0] == "subgraph":
            opened.append(words[3])
            found[words[3]] = Counter()
        elif words == ["end"]:
            opened.pop()
        elif words[-1] == "]:::blocked":
            for one in opened:
                found[one][words[2]] += 1
    assert not opened
    assert found == dict(flow.flows(name))


# --- one example -----------------------------------------------------------------------------


@pytest.fixture
def fulfil() -> Workflow[..., Any]:
    app = Umbel("sqlite:///:memory:")
    tasks = {}
    for name in ("reserve", "check", "charge", "receipt", "ship"):
        tasks[name] = app.task(name=f"shop.{name}")(lambda *values: None)

    @app.workflow(name="shop.pay")
    def pay(customer: str, price: int) -> Any:
        checked = tasks["check"].s(customer)
        return tasks["receipt"].s(tasks["charge"].s(checked.result, price).result)

    @app.workflow(name="shop.fulfil")
    def fulfil(order: dict[str, Any]) -> Any:
        box = tasks["reserve"].s(order["article"])
        customer = tasks["check"].s(order["customer"])
        first, second = pay.s(customer=customer.result, price=3), pay.s("me", order["price"])
        return tasks["ship"].s(box.result, first.result, second.result)

    return fulfil


def test_the_nodes_of_a_sub_workflow_have_paths_below_its_name(
    fulfil: Workflow[..., Any],
) -> None:
    parts = ("check", "charge", "receipt")
    assert [(depth, node.path, node.task) for depth, node in tree(fulfil.shape)] == [
        (0, "check", "shop.check"),  # an argument: it is no part of what uses it
        (0, "reserve", "shop.reserve"),
        (0, "pay-2", "shop.pay"),
        *((1, f"pay-2.{one}", f"shop.{one}") for one in parts),
        (0, "pay", "shop.pay"),  # it waits for the first check
        *((1, f"pay.{one}", f"shop.{one}") for one in parts),
        (0, "ship", "shop.ship"),
    ]


def test_arrows_end_at_a_frame_unless_both_ends_are_in_it(fulfil: Workflow[..., Any]) -> None:
    drawing = svg(fulfil.shape, alone=True)
    frames, arrows = shapes(drawing, "subgraph"), drawing.count('class="edge"')
    assert [one.path for one in frames] == ["pay-2", "pay"]
    assert arrows == 1 + 2 * 2 + 3  # check → pay, in each pay, and three → ship


PAY = (Subgraph("pay", "shop.pay"),)


def node(name: str, state: str, *before: str, **fields: Any) -> GraphNode:
    known: Any = "skipped" if state == "skipped" else State(state)
    return GraphNode(
        path=f"pay.{name}", task=name, job=name, state=known, before=before, inside=PAY, **fields
    )


def summary(*nodes: GraphNode) -> GraphNode:
    root = GraphNode(path="", task="umbel.graph", job="g", state=State.RUNNING)
    graph = Graph(id="g", label="g", state=State.RUNNING, nodes=nodes, root=root)
    _, first = next(iter(tree(graph)))
    assert (first.path, first.task, first.job) == ("pay", "shop.pay", "")
    return first


@pytest.mark.parametrize(
    ("states", "wanted"),
    [
        ("blocked blocked", "blocked"),
        ("queued blocked", "queued"),
        ("running blocked", "running"),
        ("succeeded blocked", "running"),
        ("succeeded scheduled", "running"),
        ("succeeded succeeded", "succeeded"),
        ("skipped skipped", "skipped"),
        ("buried succeeded", "succeeded"),  # its failure was collected
        ("buried cancelled", "buried"),
        ("succeeded expired", "expired"),
        ("cancelled cancelled", "cancelled"),
    ],
)
def test_the_state_of_a_sub_workflow_is_derived_from_its_nodes(states: str, wanted: str) -> None:
    first, second = states.split()
    failed = {one: one in ("buried", "expired") for one in (first, second)}
    found = summary(
        node("charge", first, failed=failed[first]),
        node("receipt", second, "charge", failed=failed[second]),
        node("apology", "blocked" if wanted == "running" else "cancelled", "charge", handler=True),
    )
    assert found.state == wanted


def test_a_sub_workflow_takes_from_its_first_start_to_its_last_end() -> None:
    charge = node("charge", "succeeded", started=10.0, finished=12.0)
    done = node("receipt", "succeeded", "charge", started=15.0, finished=16.5)
    assert summary(charge, done).seconds == 6.5
    assert summary(charge, node("receipt", "running", "charge", started=15.0)).seconds is None
