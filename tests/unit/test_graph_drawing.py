"""Graphs are drawn as valid SVG: in layers, without overlaps, whatever their names contain."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel import Signal, Umbel, chord
from umbel.graphs import Graph, GraphNode, mermaid, svg
from umbel.graphs.layout import lay_out
from umbel.messages import State

_SVG = "{http://www.w3.org/2000/svg}"


def graph_of(*waits: Sequence[int], names: Sequence[str] = (), group: str = "") -> Graph:
    """A graph whose nodes wait for those with these numbers."""
    nodes = tuple(
        GraphNode(
            path=f"{group}{number}",
            task=names[number] if names else f"task {number}",
            job=f"job {number}",
            state=State.SUCCEEDED,
            before=tuple(f"job {one}" for one in before),
        )
        for number, before in enumerate(waits)
    )
    last = (nodes[-1].job,) if nodes else ()
    root = GraphNode(path="", task="umbel.graph", job="g", state=State.SUCCEEDED, before=last)
    return Graph(id="g", label="graph", state=State.SUCCEEDED, nodes=nodes, root=root)


def boxes_in(text: str) -> list[Any]:
    """The boxes of a drawing that is a file."""
    found = ElementTree.fromstring(text).iter(f"{_SVG}g")
    return [one for one in found if "node" in one.get("class", "").split()]


def test_layers_are_the_longest_paths() -> None:
    #  0 → 1 → 2 → 3, 0 → 3 and 4 → 3
    layout = lay_out(5, ((0, 1), (1, 2), (2, 3), (0, 3), (4, 3)))
    assert layout.layers == (0, 1, 2, 3, 0)
    assert layout.depth == 4
    assert [len(route) for route in layout.routes] == [0, 0, 0, 2, 2]


def test_edges_that_pass_many_layers_are_drawn_straight() -> None:
    chain = [(one, one + 1) for one in range(80)]
    layout = lay_out(81, (*chain, *((one, 80) for one in range(79))))
    assert layout.depth == 81
    assert not any(layout.routes)


@given(st.integers(0, 12), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11))))
def test_no_boxes_overlap_in_any_graph(count: int, pairs: list[tuple[int, int]]) -> None:
    edges = tuple(dict.fromkeys(one for one in pairs if max(one) < count and one[0] != one[1]))
    layout = lay_out(count, edges)
    for layer in range(layout.depth):
        places = sorted(
            offset
            for offset, own in zip(layout.offsets, layout.layers, strict=True)
            if own == layer
        )
        assert all(second - first > 0.999 for first, second in pairwise(places))
        assert all(0.499 < place < layout.width - 0.499 for place in places)


@pytest.mark.parametrize(
    "name", ['"<b>', "a\nb", "🎬 &amp;", "\u202e\x1b[31m", "\ufffe\ud800", "'"]
)
def test_hostile_names_give_valid_drawings(name: str) -> None:
    graph = graph_of((), (0,), names=(name, name * 100))
    whole = ElementTree.fromstring(svg(graph, alone=True))
    assert len(list(whole.iter(f"{_SVG}title"))) == 2
    shown = svg(graph, link=lambda number, box: f"/graphs/{name}?node={box.first.job}")
    ElementTree.fromstring(shown)
    for text in (shown, svg(graph, alone=True), mermaid(graph)):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "<b>" not in text
    assert " style=" not in shown
    assert "<style" not in shown
    assert len(mermaid(graph).splitlines()) == 5


def test_more_than_300_nodes_share_boxes_and_never_more_than_60() -> None:
    wide = graph_of(*[()] * 400, range(400), names=["part"] * 400 + ["total"], group="0.")
    [parts, total] = boxes_in(svg(wide, alone=True))
    assert "part × 400: 400 succeeded" in parts.findtext(f"{_SVG}title")
    assert "total" in total.findtext(f"{_SVG}title")
    many = graph_of(*[()] * 400, names=[f"task {number}" for number in range(400)])
    assert len(boxes_in(svg(many, alone=True))) == 60
    few = graph_of(*[()] * 300)
    assert len(boxes_in(svg(few, alone=True))) == 300


def test_the_critical_path_is_thick() -> None:
    nodes = [(0, 1.0), (1, 9.0), (2, 2.0), (3, 10.0)]
    graph = graph_of((), (0,), (0,), (1, 2))
    timed = [
        GraphNode(
            path=one.path, task=one.task, job=one.job, state=one.state, before=one.before,
            started=0.0, finished=finished,
        )
        for one, (_, finished) in zip(graph.nodes, nodes, strict=True)
    ]  # fmt: skip
    whole = Graph(id="g", label="g", state=graph.state, nodes=tuple(timed), root=graph.root)
    drawn = boxes_in(svg(whole, alone=True))
    assert ["critical" in one.get("class") for one in drawn] == [True, True, False, True]
    assert svg(whole, alone=True).count('class="edge critical"') == 2


def test_a_signal_is_drawn_after_the_nodes_that_it_waits_for() -> None:
    app = Umbel("sqlite:///:memory:")

    @app.task(name="charge")
    def charge(order: int) -> int:
        return order

    @app.task(name="ship")
    def ship(order: int, approved: bool) -> None: ...

    @app.workflow(name="fulfil")
    def fulfil(order: int) -> Any:
        paid = charge.s(order)
        return ship.s(paid, Signal("approved", timeout=60, default=False).after(paid))

    text = svg(fulfil.shape, alone=True)
    assert text.count('class="edge"') == 2  # and none beside the signal
    assert [one.get("class") for one in boxes_in(text)] == ["node blocked"] * 3


def test_a_graph_that_was_not_published_is_drawn_without_states() -> None:
    app = Umbel("sqlite:///:memory:")

    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    @app.task(name="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.workflow(name="sums")
    def sums(number: int) -> Any:
        return chord([double.s(number), double.s(1)], total.s())

    text = svg(sums.shape, alone=True)
    assert "blocked · " not in text
    assert "○" not in text
