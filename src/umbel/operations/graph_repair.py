"""Which nodes of a graph run again when an operator retries it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from umbel.errors import NotAllowed
from umbel.graphs import Graph, GraphNode, named_id
from umbel.messages import State
from umbel.messages.graphs import WAITS_FOR_TIME

_ACTING = ("cancel", "release", "undo")
"""Kinds of nodes that act when others have failed: they may have to act again."""


def failed_jobs(graph: Graph, name: str | None) -> list[str]:
    """Return the jobs of the failed nodes, or of this one; the root, too, if it does not follow."""
    nodes = [
        node for node in graph.nodes if node.failed and node.kind not in _ACTING and not node.undoes
    ]
    if name is not None:
        node = graph.find(name)
        if not node.has_ended:
            raise NotAllowed(f"node {node.path} is {node.state}: wait until it has ended")
        if not node.failed:
            raise NotAllowed(
                f"node {node.path} has not failed: it is {node.state}; --from {node.path} runs"
                " it and all after it again"
            )
        nodes = [node]
    elif graph.state.finished and graph.state is not State.SUCCEEDED:
        following = {one.job for one in graph.after([node.job for node in nodes])}
        # Cancelled after all others, or beside a branch that failed; or a job of others failed.
        nodes += [graph.root] if graph.root.job not in following else []
    if not nodes:
        raise NotAllowed(
            f"graph {graph.id} is {graph.state}, and no node has failed; --from NODE runs a"
            " part of it again"
        )
    return [node.job for node in nodes]


def with_consequences(graph: Graph, jobs: list[str]) -> list[str]:
    """Return jobs that run again, with nodes that were undone, and what acts on failures."""
    if all(node.undoes for node in graph.nodes if node.job in jobs):
        return jobs
    found = dict.fromkeys(jobs)
    for node in undone_nodes(graph):
        found |= dict.fromkeys(_following(graph, node))
    if any(node.undoes for node in graph.nodes):  # they have replaced the node that publishes them
        found[named_id(graph.id, "undo")] = None
    following = graph.after(found)
    signals = {one.path.removesuffix(".release") for one in following if one.kind == "release"}
    for node in (*following, *graph.nodes):
        acts = node.state is State.SUCCEEDED and (node.handler or node.kind in _ACTING)
        is_released = (
            node.kind == "signal" and node.path in signals and node.state is State.CANCELLED
        )
        if is_released or (acts and node in following):
            found[node.job] = None
    for node in _stopped_timers(graph, {*found, *(one.job for one in following)}):
        found[node.job] = None
    return [*found]


def _stopped_timers(graph: Graph, again: set[str]) -> list[GraphNode]:
    """Return the timeouts of signals, and the deadline, that were cancelled and count again."""
    timers = tuple(
        f"{node.path}.timeout"
        for node in graph.nodes
        if node.kind == "signal" and node.job in again
    )
    return [
        node
        for node in graph.nodes
        if node.state is State.CANCELLED
        and (
            (node.kind == "timer" and node.path.startswith(timers))
            or (node.kind == "deadline" and graph.root.job in again)
        )
    ]


def jobs_from(graph: Graph, name: str) -> list[str]:
    """Return the jobs of a node and of all that follow it."""
    node = graph.find(name)
    grown = [
        one
        for one in (node, *graph.after([node.job]))
        if one.replaced and one.kind not in WAITS_FOR_TIME
    ]
    if grown:
        raise NotAllowed(
            f"node {grown[0].path} was replaced by other nodes when it ran, which cannot be"
            " taken back; name a node inside it, or publish the graph again"
        )
    return _following(graph, node)


def _following(graph: Graph, node: GraphNode) -> list[str]:
    """Return the jobs of a node and of all that follow it, except nodes that were replaced."""
    following = [node, *graph.after([node.job])]
    running = next((one for one in following if one.state is State.RUNNING), None)
    if running is not None:
        raise NotAllowed(f"node {running.path} runs: wait until it has ended, or cancel it")
    jobs = [
        one.job for one in following if one.has_ended and one.kind != "signal" and not one.replaced
    ]
    return [*jobs, *([node.job] if node.kind == "signal" else [])]


def had_place(graph: Graph, again: Sequence[str]) -> bool:
    """Whether a run of a workflow with a limit continues without waiting for a place again."""
    return any(
        node.kind == "place" and node.state is State.SUCCEEDED and node.job not in again
        for node in graph.nodes
    )


def undone_nodes(graph: Graph) -> list[GraphNode]:
    """Return the nodes whose undos have succeeded, and that have not run again since."""
    by_job = {node.job: node for node in graph.nodes}
    undone: dict[str, float] = {}
    for node in graph.nodes:
        if node.undoes and node.state is State.SUCCEEDED:
            undone[node.undoes] = max(node.finished or 0.0, undone.get(node.undoes, 0.0))
    return [
        by_job[job]
        for job, moment in undone.items()
        if job in by_job and by_job[job].has_ended and (by_job[job].finished or 0.0) <= moment
    ]


def refuse_undoing(graph: Graph) -> None:
    """Raise NotAllowed while nodes are undone."""
    for node in graph.nodes:
        starts = node.kind == "undo" and node.state not in (State.BLOCKED, State.SCHEDULED)
        if (starts or node.undoes) and not node.has_ended:
            raise NotAllowed(f"graph {graph.id} is undone now ({node.path}): wait until that ends")
