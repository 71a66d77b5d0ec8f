"""The sub-workflows and replaced nodes of a graph: which nodes are in each, and its state."""

from __future__ import annotations

from collections.abc import Sequence

from umbel.messages.graphs import Graph, GraphNode, NodeState, Subgraph
from umbel.messages.states import State

Nesting = tuple[Subgraph, ...]
"""A subgraph, after those that contain it."""


def surroundings(graph: Graph) -> dict[str, Nesting]:
    """Return in which subgraphs each node is, by its job. A replaced node is in its own."""
    used = {node.inside[:end] for node in graph.tasks() for end in range(1, len(node.inside) + 1)}
    found: dict[str, Nesting] = {}
    for node in graph.nodes:
        own = (*node.inside, Subgraph(node.path, node.task))
        found[node.job] = own if own in used else node.inside
    return found


def summaries(graph: Graph) -> dict[Nesting, GraphNode]:
    """Return each subgraph as if it were one node: its state, and when it began and ended."""
    members: dict[Nesting, list[GraphNode]] = {}
    around = surroundings(graph)
    for node in graph.nodes:
        inside = around[node.job]
        for end in range(1, len(inside) + 1):
            members.setdefault(inside[:end], []).append(node)
    return {inside: _summary(inside[-1], nodes) for inside, nodes in members.items()}


def _summary(one: Subgraph, nodes: Sequence[GraphNode]) -> GraphNode:
    shown = [node for node in nodes if node.runs_task and not node.is_unneeded]
    has_ended = not any(node.is_expected for node in shown)
    ran = [node for node in shown if node.started is not None or node.state is State.SUCCEEDED]
    started = min((node.started for node in ran if node.started is not None), default=None)
    finished = max((node.finished for node in ran if node.finished is not None), default=None)
    return GraphNode(
        path=one.path,
        task=one.name,
        job="",
        state=_final_state(nodes, shown) if has_ended else _live_state(shown),
        kind="workflow",
        started=started,
        finished=finished if has_ended else None,
    )


def _live_state(shown: Sequence[GraphNode]) -> NodeState:
    states = {node.state for node in shown}
    if State.RUNNING in states or any(node.has_ended for node in shown):
        return State.RUNNING
    order = (State.QUEUED, State.WAITING, State.SCHEDULED)
    return next((state for state in order if state in states), State.BLOCKED)


def _final_state(nodes: Sequence[GraphNode], shown: Sequence[GraphNode]) -> NodeState:
    """Return the state of a subgraph that has ended: that of the nodes that end it."""
    followed = {job for node in nodes if not node.handler for job in node.before}
    last = {node.state for node in shown if node.job not in followed and not node.handler}
    if last <= {State.SUCCEEDED, "skipped"}:
        return "skipped" if last == {"skipped"} else State.SUCCEEDED
    failed = {node.state for node in shown if node.failed}
    return next((one for one in (State.BURIED, State.EXPIRED) if one in failed), State.CANCELLED)
