"""Draws graphs as text: a tree for terminals, and Mermaid for documents."""

from __future__ import annotations

from collections.abc import Iterator

from umbel.graphs.boxes import Box, boxes, edges
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
    """Return the nodes that run tasks, each with the depth of its path, in the order of paths."""
    for node in graph.tasks():
        yield max(len(path_key(node.path)) - 1, 0), node


def mermaid(graph: Graph) -> str:
    """Return the graph as a Mermaid flowchart."""
    drawn = boxes(graph)
    lines = ["flowchart LR"]
    for number, box in enumerate(drawn):
        lines.append(f'  n{number}["{_label(box)}"]:::{box.state}')
    lines += [f"  n{first} --> n{second}" for first, second in edges(graph, drawn)]
    used = sorted({box.state for box in drawn})
    lines += [f"  classDef {state} fill:{_COLORS.get(state, '#ffffff')}" for state in used]
    return "\n".join(lines)


def _label(box: Box) -> str:
    first = box.first
    return _escape(f"{first.task}: {box.counts}" if box.is_many else f"{first.path} {first.task}")


def _escape(text: str) -> str:
    """Return a text that Mermaid shows as it is, whatever it contains."""
    shown = "".join(one if one.isprintable() else " " for one in text)
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        shown = shown.replace(character, entity)
    return shown
