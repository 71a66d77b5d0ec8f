"""What the pages of graphs show, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from umbel.dashboard.node_panel import selected, visible_result
from umbel.dashboard.views import Page, View
from umbel.errors import UmbelError, UnknownJob
from umbel.graphs import MAX_DRAWN_NODES, Box, Graph, GraphNode, boxes, with_summaries
from umbel.messages import GRAPH_TASK, GROUP_HEADER, NODE_HEADER, Record, State, read_node
from umbel.messages.graphs import path_key
from umbel.operations import GRAPH_STATES, graph_document, graph_state

_SIGNALS = 20
_MAX_TASKS = 20_000
"""A graph with more tasks is not read once a second."""


# --- lists -----------------------------------------------------------------------------------


async def read_graphs(view: View) -> dict[str, Any]:
    """Return the graphs: live ones first, then the last that have ended."""
    state = view.choice("state", ("all", *GRAPH_STATES), "all")
    workflow = view.query.get("workflow", "").strip()
    found = await view.operations.graphs.search(
        GRAPH_STATES.get(state, ()), workflow=workflow, after=view.query.get("after", "")
    )
    return {
        "graphs": [graph_row(root, view) for root in found.roots],
        "state": state,
        "states": ["all", *GRAPH_STATES],
        "workflow": workflow,
        "workflows": sorted(view.app.workflows),
        "after": found.after,
    }


def graph_row(root: Record, view: View) -> dict[str, Any]:
    """Return what a list shows of a graph."""
    document = graph_document(root)
    took = None if root.finished is None else max(root.finished - root.created, 0.0)
    return document | {
        "style": _style(root.state),
        "took": took,
        "note": view.visibility.error(document["note"]),
    }


def _style(state: State) -> str:
    """Return the color of the state of a graph."""
    return "running" if graph_state(state) == "running" else str(state)


# --- one graph -------------------------------------------------------------------------------


async def read_graph_page(view: View) -> dict[str, Any]:
    """Return one graph: its nodes, open signals, and the node or box that is chosen."""
    graphs, visibility = view.operations.graphs, view.visibility
    root = await view.operations.job(view.path["id"])
    total = graph_document(root)["tasks"] if root.task == GRAPH_TASK else 0
    if total > _MAX_TASKS:
        return _large(root, total, view)
    graph = _masked(await graphs.show(root.id), visibility.error)
    if graph.state.finished and not root.state.finished:  # it has ended meanwhile
        root = await view.operations.job(root.id)
    drawn = boxes(graph, MAX_DRAWN_NODES)
    done, count = graph.progress
    critical = graph.critical_path()
    return {
        "graph": graph,
        "state": graph_state(graph.state),
        "style": _style(graph.state),
        "done": done,
        "total": count,
        "counts": graph.counts(),
        "took": None if graph.finished is None else max(graph.finished - graph.created, 0.0),
        "is_large": False,
        "has_ended": graph.state.finished,
        "has_failed": any(node.failed for node in graph.tasks()),
        "critical": critical,
        "rows": _rows(graph, drawn, {*critical}),
        "signals": await _open_signals(graph, view),
        "selected": "",
        "node": None,
        "box": None,
        "result": await visible_result(root, view),
    } | await selected(graph, drawn, view)


def _large(root: Record, total: int, view: View) -> dict[str, Any]:
    """Return what is shown of a graph with too many nodes."""
    return {
        **graph_row(root, view),
        "is_large": True,
        "total": total,
        "has_ended": root.state.finished,
    }


def _masked(graph: Graph, hide: Callable[[str], str]) -> Graph:
    """Return a graph without the texts of errors that the user may not see."""
    nodes = tuple(msgspec.structs.replace(node, error=hide(node.error)) for node in graph.nodes)
    return msgspec.structs.replace(graph, nodes=nodes, error=hide(graph.error))


def _rows(graph: Graph, drawn: Sequence[Box], critical: set[str]) -> list[dict[str, Any]]:
    """Return the lines of the list of nodes: one for each box, and for each sub-workflow."""
    waits = graph.waits()
    by_job = {node.job: node for node in graph.nodes}
    found = []
    for number, box in with_summaries(graph, drawn):
        node = box.first
        jobs = waits.get(node.job, ())
        before = [by_job[job].path for job in jobs if _is_shown(by_job.get(job))]
        found.append(
            {
                "box": number if box.is_many else None,
                "nodes": len(box.nodes),
                "counts": box.counts,
                "depth": 0 if box.is_many else min(max(len(path_key(node.path)) - 1, 0), 8),
                "path": node.path,
                "task": node.task,
                "job": node.job,
                "state": box.state,
                "started": node.started if node.state is State.RUNNING else None,
                "took": node.seconds,
                "before": before[:3],
                "more_before": max(len(before) - 3, 0),
                "handler": node.handler,
                "is_critical": any(one.job in critical for one in box.nodes),
                "error": node.error,
            }
        )
    return found


def _is_shown(node: GraphNode | None) -> bool:
    return node is not None and node.runs_task


async def _open_signals(graph: Graph, view: View) -> list[dict[str, Any]]:
    """Return the signals that have no value yet."""
    found = []
    waits, by_job = graph.waits(), {node.job: node for node in graph.nodes}
    open_ones = [node for node in graph.nodes if node.kind == "signal" and not node.has_ended]
    for node in open_ones[:_SIGNALS]:
        try:
            record = await view.operations.job(node.job)
        except UnknownJob:
            continue
        spec = read_node(record.headers.get(NODE_HEADER, "{}"))
        before = [by_job[job] for job in waits[node.job] if job in by_job]
        found.append(
            {
                "name": spec.signal,
                "accepts": spec.accepts,
                "job": node.job,
                "is_early": any(not one.has_ended for one in before),
            }
        )
    return found


def graph_place(record: Record) -> dict[str, str] | None:
    """Return the graph of a job, and its path there; None if it belongs to none."""
    if record.task == GRAPH_TASK:
        return {"id": record.id, "node": "", "path": ""}
    if GROUP_HEADER not in record.headers or NODE_HEADER not in record.headers:
        return None
    try:
        path = read_node(record.headers[NODE_HEADER]).path
    except UmbelError:
        return None
    return {"id": record.headers[GROUP_HEADER], "node": record.id, "path": path}


GRAPH_PAGES = (
    Page(
        name="graphs",
        path="/graphs",
        title="Graphs",
        read=read_graphs,
        parameters=("state", "workflow", "after"),
    ),
    Page(
        name="graph",
        path="/graphs/{id}",
        title="Graph",
        read=read_graph_page,
        parameters=("node", "box"),
    ),
)
"""The pages of graphs."""
