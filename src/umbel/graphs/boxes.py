"""The boxes of a drawing: one for each node, or one for many nodes of a task, and their edges."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise, takewhile

import msgspec

from umbel.graphs.subgraphs import Nesting, surroundings
from umbel.messages.graphs import Graph, GraphNode

MAX_BOXES = 60
"""The most boxes of a drawing in which a box stands for many nodes."""
_WAITING = ("signal", "sleep")


class Box(msgspec.Struct, frozen=True):
    """One or many nodes of a graph."""

    nodes: tuple[GraphNode, ...]

    @property
    def is_many(self) -> bool:
        """Whether it stands for more than one node."""
        return len(self.nodes) > 1

    @property
    def first(self) -> GraphNode:
        """Its first node."""
        return self.nodes[0]

    @property
    def state(self) -> str:
        """The state of the node that needs attention first."""
        states = {str(node.state) for node in self.nodes}
        order = ("buried", "expired", "running", "queued", "waiting", "scheduled", "blocked")
        return next((one for one in order if one in states), min(states))

    @property
    def counts(self) -> str:
        """How many of its nodes are in each state, in words."""
        counts = Counter(str(node.state) for node in self.nodes)
        return ", ".join(f"{count:,} {state}" for state, count in counts.most_common())


def boxes(graph: Graph, max_nodes: int = MAX_BOXES) -> list[Box]:
    """Return the boxes of a graph: one for each node, if there are at most ``max_nodes``.

    Otherwise nodes of the same task in the same part of the canvas share a box. If these would be
    more than ``MAX_BOXES``, all nodes of a task share one, and further tasks share the last box.
    """
    around = surroundings(graph)
    nodes = graph.tasks()
    if len(nodes) <= max_nodes:
        return [Box((node,)) for node in nodes]
    groups: dict[object, list[GraphNode]] = {}
    for node in nodes:
        part = node.path.rpartition(".")[0], around[node.job]
        groups.setdefault((part, node.task), []).append(node)
    if len(groups) > MAX_BOXES:
        groups = {}
        for node in nodes:
            groups.setdefault(node.task, []).append(node)
    found = [Box(tuple(one)) for one in groups.values()]
    if len(found) > MAX_BOXES:
        rest = [node for box in found[MAX_BOXES - 1 :] for node in box.nodes]
        found[MAX_BOXES - 1 :] = [Box(tuple(rest))]
    return found


def nestings(graph: Graph, drawn: Sequence[Box]) -> list[Nesting]:
    """Return in which subgraph each box is: in the smallest one that has all its nodes."""
    around = surroundings(graph)
    return [
        reduce(shared, (around[node.job] for node in box.nodes[1:]), around[box.first.job])
        for box in drawn
    ]


def shared(one: Nesting, other: Nesting) -> Nesting:
    """Return the smallest subgraph that contains both."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return tuple(part for part, _ in same)


def edges(graph: Graph, drawn: Sequence[Box]) -> list[tuple[int, int]]:
    """Return which boxes follow which, by their numbers. Nodes that are not drawn are passed."""
    of_job = {node.job: number for number, box in enumerate(drawn) for node in box.nodes}
    sources: dict[str, dict[int, None]] = {}
    found: dict[tuple[int, int], None] = {}
    waits = graph.waits()
    for node in _in_order(graph.nodes, waits):
        before: dict[int, None] = {}
        for job in waits[node.job]:
            before |= sources.get(job, {})
        number = of_job.get(node.job)
        if number is None:
            sources[node.job] = before
        else:
            sources[node.job] = {number: None}
            found |= dict.fromkeys((one, number) for one in before if one != number)
    return _without_shortcuts(found, drawn)


def _without_shortcuts(
    found: Mapping[tuple[int, int], None], drawn: Sequence[Box]
) -> list[tuple[int, int]]:
    """Leave out edges beside a signal or a sleep: what follows it waits for what it waits for."""
    before: dict[int, set[int]] = {}
    for first, second in found:
        before.setdefault(second, set()).add(first)
    waiting = {number for number, box in enumerate(drawn) if box.first.kind in _WAITING}
    return [
        (first, second)
        for first, second in found
        if not any(first in before.get(one, ()) for one in before[second] & waiting)
    ]


def critical_edges(graph: Graph, drawn: Sequence[Box]) -> set[tuple[int, int]]:
    """Return the edges of the critical path."""
    of_job = {node.job: number for number, box in enumerate(drawn) for node in box.nodes}
    path = [of_job[job] for job in graph.critical_path() if job in of_job]
    return {pair for pair in pairwise(path) if pair[0] != pair[1]}


def _in_order(nodes: Sequence[GraphNode], waits: Mapping[str, Sequence[str]]) -> list[GraphNode]:
    """Return nodes so that each comes after those that it waits for."""
    by_job = {node.job for node in nodes}
    after: dict[str, list[GraphNode]] = {}
    waiting: dict[str, int] = {}
    for node in nodes:
        before = {job for job in waits[node.job] if job in by_job}
        waiting[node.job] = len(before)
        for job in before:
            after.setdefault(job, []).append(node)
    ready = deque(node for node in nodes if not waiting[node.job])
    found: list[GraphNode] = []
    while ready:
        node = ready.popleft()
        found.append(node)
        for following in after.get(node.job, ()):
            waiting[following.job] -= 1
            if not waiting[following.job]:
                ready.append(following)
    return found
