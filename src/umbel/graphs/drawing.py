"""Draws graphs as text: a tree for terminals, and Mermaid for documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from umbel.graphs.boxes import Box, boxes, edges, nestings
from umbel.graphs.picture import Picture, picture
from umbel.graphs.subgraphs import Nesting, summaries, surroundings
from umbel.messages.graphs import Graph, GraphNode, path_key

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
    """Return the nodes that run tasks, each with the depth of its path, in the order of paths.

    The summary of a sub-workflow comes before its nodes.
    """
    for _, box in with_summaries(graph, [Box((node,)) for node in graph.tasks()]):
        yield max(len(path_key(box.first.path)) - 1, 0), box.first


def with_summaries(graph: Graph, drawn: Sequence[Box]) -> Iterator[tuple[int, Box]]:
    """Return boxes with their numbers, and before those in a sub-workflow one of its summary.

    Replaced nodes have no summary: they are nodes.
    """
    around, known = surroundings(graph), summaries(graph)
    shown = {around[node.job] for node in graph.tasks() if around[node.job] != node.inside}
    for number, box in enumerate(drawn):
        inside = box.first.inside
        for end in range(1, len(inside) + 1):
            if inside[:end] not in shown:
                shown.add(inside[:end])
                yield -1, Box((known[inside[:end]],))
        yield number, box


def mermaid(graph: Graph) -> str:
    """Return the graph as a Mermaid flowchart."""
    drawn = boxes(graph)
    lines = ["flowchart LR"]
    lines += _nested(picture(nestings(graph, drawn)), drawn, {}, "  ")
    lines += [f"  n{first} --> n{second}" for first, second in edges(graph, drawn)]
    used = sorted({box.state for box in drawn})
    lines += [f"  classDef {state} fill:{_COLORS.get(state, '#ffffff')}" for state in used]
    return "\n".join(lines)


def _nested(
    part: Picture, drawn: Sequence[Box], numbers: dict[Nesting, int], indent: str
) -> Iterator[str]:
    """Return the lines of boxes, and of subgraphs with theirs."""
    for item in part.items:
        if isinstance(item, Picture):
            number = numbers.setdefault(item.inside, len(numbers))
            name = _escape(" ".join((item.inside[-1].path, item.inside[-1].name)))
            yield f'{indent}subgraph s{number}["{name}"]'
            yield from _nested(item, drawn, numbers, f"{indent}  ")
            yield f"{indent}end"
        else:
            yield f'{indent}n{item}["{_label(drawn[item])}"]:::{drawn[item].state}'


def _label(box: Box) -> str:
    first = box.first
    return _escape(f"{first.task}: {box.counts}" if box.is_many else f"{first.path} {first.task}")


def _escape(text: str) -> str:
    """Return a text that Mermaid shows as it is, whatever it contains."""
    shown = "".join(one if one.isprintable() else " " for one in text)
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        shown = shown.replace(character, entity)
    return shown
