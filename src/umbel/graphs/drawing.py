"""Draws graphs as text: a tree for terminals, and Mermaid for documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from umbel.graphs.view import Graph, GraphNode, path_key

_MAX_BOXES = 60
"""A graph with more nodes is drawn with one box for all nodes of a task with the same neighbors."""
_COLORS = {
    "succeeded": "#e3f4e9,stroke:#1b7340",
    "running": "#e6effc,stroke:#1d5fbf",
    "buried": "#fce8e6,stroke:#b3261e",
    "cancelled": "#f0ebe6,stroke:#6b5b4e",
    "expired": "#fcebe0,stroke:#9a3f0b",
    "skipped": "#f0ebe6,stroke:#6b5b4e",
    "queued": "#e9ecf1,stroke:#4a5568",
    "waiting": "#fbf1dc,stroke:#8a5a00",
    "scheduled": "#f0ebfc,stroke:#6b46c1",
    "blocked": "#ffffff,stroke:#7a8394",
}


def tree(graph: Graph) -> Iterator[tuple[int, GraphNode]]:
    """Return the nodes that run tasks, each with the depth of its path, in the order of paths."""
    for node in graph.tasks():
        yield max(len(path_key(node.path)) - 1, 0), node


def mermaid(graph: Graph) -> str:
    """Return the graph as a Mermaid flowchart."""
    boxes = _boxes(graph)
    of_job = {job: name for name, jobs in boxes for job in (one.job for one in jobs)}
    lines = ["flowchart LR"]
    for name, nodes in boxes:
        lines.append(f'  {name}["{_label(nodes)}"]:::{_state(nodes)}')
    edges = dict.fromkeys(
        (of_job[part], of_job[node.job])
        for _, nodes in boxes
        for node in nodes
        for part in _task_parts(graph, node)
        if part in of_job and of_job[part] != of_job[node.job]
    )
    lines += [f"  {first} --> {second}" for first, second in edges]
    used = sorted({_state(nodes) for _, nodes in boxes})
    lines += [f"  classDef {state} fill:{_COLORS.get(state, '#ffffff')}" for state in used]
    return "\n".join(lines)


def _boxes(graph: Graph) -> list[tuple[str, list[GraphNode]]]:
    """Return the boxes with their nodes: one for each, or for each task if there are too many."""
    nodes = graph.tasks()
    if len(nodes) <= _MAX_BOXES:
        return [(f"n{number}", [node]) for number, node in enumerate(nodes)]
    groups: dict[tuple[str, str], list[GraphNode]] = {}
    for node in nodes:
        groups.setdefault((_parent(node.path), node.task), []).append(node)
    if len(groups) > _MAX_BOXES:
        groups = {}
        for node in nodes:
            groups.setdefault(("", node.task), []).append(node)
    return [(f"n{number}", found) for number, found in enumerate(groups.values())]


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _task_parts(graph: Graph, node: GraphNode) -> list[str]:
    """Return the tasks before a node, through nodes that run none."""
    by_job = {one.job: one for one in graph.nodes}
    found: list[str] = []
    left, seen = [*node.before], set[str]()
    while left:
        job = left.pop(0)
        if job in seen:
            continue
        seen.add(job)
        part = by_job.get(job)
        if part is not None and not part.runs_task:
            left += part.before
        else:
            found.append(job)
    return found


def _state(nodes: Sequence[GraphNode]) -> str:
    """Return the state of a box: that which needs attention first."""
    states = {str(node.state) for node in nodes}
    order = ("buried", "expired", "running", "queued", "waiting", "scheduled", "blocked")
    return next((one for one in order if one in states), min(states))


def _label(nodes: Sequence[GraphNode]) -> str:
    first = nodes[0]
    if len(nodes) == 1:
        return _escape(f"{first.path} {first.task}")
    counts = Counter(str(node.state) for node in nodes)
    parts = ", ".join(f"{count:,} {state}" for state, count in counts.most_common())
    return _escape(f"{first.task}: {parts}")


def _escape(text: str) -> str:
    """Return a text that Mermaid shows as it is, whatever it contains."""
    shown = "".join(one if one.isprintable() else " " for one in text)
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        shown = shown.replace(character, entity)
    return shown
