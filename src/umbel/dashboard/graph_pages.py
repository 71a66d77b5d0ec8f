"""What the pages of graphs and workflows show, as plain data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from umbel.dashboard.views import Page, View, form_fields
from umbel.dashboard.visibility import parameter_name
from umbel.errors import UmbelError, UnknownJob, UnknownTask
from umbel.graphs import MAX_DRAWN_NODES, Box, Graph, GraphNode, boxes, with_summaries
from umbel.messages import GRAPH_TASK, GROUP_HEADER, NODE_HEADER, Record, State, read_node
from umbel.messages.graphs import path_key
from umbel.operations import GRAPH_STATES, NodeInput, graph_document, graph_state
from umbel.tasks import Task

_VALUES_SECONDS = 1.0
"""How long the values of a node are read. A result may refer to thousands of others."""
_BOX_NODES = 100
_SIGNALS = 20
_RUNS = 20
_COUNTED_RUNS = 2_000
_MAX_TASKS = 20_000
"""A graph with more tasks is not read once a second."""
_ATTENTION = ("buried", "expired", "running", "cancelled")


# --- lists -----------------------------------------------------------------------------------


async def read_graphs(view: View) -> dict[str, Any]:
    """Return the graphs: live ones first, then the last that have ended."""
    state = view.choice("state", ("all", *GRAPH_STATES), "all")
    workflow = view.query.get("workflow", "").strip()
    found = await view.operations.graphs.search(
        GRAPH_STATES.get(state, ()), workflow=workflow, after=view.query.get("after", "")
    )
    return {
        "graphs": [_row(root, view) for root in found.roots],
        "state": state,
        "states": ["all", *GRAPH_STATES],
        "workflow": workflow,
        "workflows": sorted(view.app.workflows),
        "after": found.after,
    }


def _row(root: Record, view: View) -> dict[str, Any]:
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
        "result": await _result(root, view),
    } | await _chosen(graph, drawn, view)


def _large(root: Record, total: int, view: View) -> dict[str, Any]:
    """Return what is shown of a graph with too many nodes."""
    return {
        **_row(root, view),
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


async def _chosen(graph: Graph, drawn: list[Box], view: View) -> dict[str, Any]:
    """Return the node or the box that the address names."""
    number = view.query.get("box", "")
    if number.isascii() and number.isdigit() and int(number[:6]) < len(drawn):
        box = drawn[int(number[:6])]
        order = {state: at for at, state in enumerate(_ATTENTION)}
        nodes = sorted(box.nodes, key=lambda one: order.get(str(one.state), len(order)))
        shown = {"counts": box.counts, "task": box.first.task, "nodes": nodes[:_BOX_NODES]}
        return {"box": shown | {"more": max(len(nodes) - _BOX_NODES, 0)}, "selected": nodes[0].job}
    if not (name := view.query.get("node", "")):
        return {}
    node = graph.find(name)
    return {"node": await _panel(graph, node, view), "selected": node.job}


async def _panel(graph: Graph, node: GraphNode, view: View) -> dict[str, Any]:
    """Return what the panel of a node shows."""
    panel: dict[str, Any] = {
        **msgspec.to_builtins(node),
        "seconds": node.seconds,
        "has_ended": node.has_ended,
        "can_resolve": node.state not in ("skipped", State.SUCCEEDED, State.RUNNING),
        "record": None,
        "inputs": [],
        "result": None,
    }
    try:
        record = await view.operations.job(node.job)
    except UnknownJob:
        return panel
    panel["record"] = shown = view.visibility.job(record)
    panel["inputs"] = await _inputs(graph, record, view)
    from_nodes = {one["name"] for one in panel["inputs"]}
    # The message has null in their place.
    shown["arguments"] = [
        one
        for one in shown["arguments"]
        if one["value"] is not None or one["name"] not in from_nodes
    ]
    panel["result"] = await _result(record, view)
    return panel


async def _inputs(graph: Graph, record: Record, view: View) -> list[dict[str, Any]]:
    """Return the values at the edges that lead to a node."""
    try:
        async with asyncio.timeout(_VALUES_SECONDS):
            found = await view.operations.graphs.inputs(record)
    except (TimeoutError, UmbelError):
        return []
    task = view.app.registry.get(record.task)
    paths = {node.job: node.path for node in graph.nodes if node.runs_task}
    return [
        {
            "name": str(key) if isinstance(key, str) else parameter or str(key),
            "from": [{"job": job, "path": paths[job]} for job in one.jobs if job in paths],
            "count": one.count,
            "is_known": one.is_known,
            "value": view.visibility.argument(one.value, *names) if one.is_known else None,
        }
        for one in found
        for key, parameter, names in [_names(one, task)]
    ]


def _names(one: NodeInput, task: Task[Any, Any] | None) -> tuple[int | str, str, list[str]]:
    """Return the argument that an input is, its parameter, and all names on the way to it."""
    kind, *rest = one.place
    key = rest[0] if rest else kind
    parameter = parameter_name(task, key) or (key if isinstance(key, str) else "")
    return key, parameter, [parameter, *map(str, rest)]


async def _result(record: Record, view: View) -> Any:
    if record.state is not State.SUCCEEDED:
        return None
    try:
        async with asyncio.timeout(_VALUES_SECONDS):
            value = await view.operations.graphs.result(record)
    except (TimeoutError, UmbelError):
        return None
    return view.visibility.value(value)


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


# --- workflows -------------------------------------------------------------------------------


async def read_workflows(view: View) -> dict[str, Any]:
    """Return the workflows and their versions, with the runs of each."""
    declared = {name: one.version for name, one in view.app.workflows.items()}
    versions = await view.operations.graphs.workflow_versions(_COUNTED_RUNS, declared)
    rows = [
        {
            "workflow": one.workflow,
            "version": one.version,
            "is_declared": one.is_declared,
            "description": _description(view, one.workflow) if one.is_declared else "",
            "running": one.live,
            "ended": one.ended,
        }
        for one in versions
    ]
    read = sum(one.live + one.ended for one in versions)
    return {"workflows": rows, "is_cut": read >= _COUNTED_RUNS, "counted": _COUNTED_RUNS}


def _description(view: View, name: str) -> str:
    return (view.app.workflows[name].__doc__ or "").strip().split("\n")[0]


async def read_workflow(view: View) -> dict[str, Any]:
    """Return one workflow: its declaration, the fields to start it, and its last runs."""
    name = view.path["name"]
    workflow = view.app.workflows.get(name)
    found = await view.operations.graphs.search(workflow=name, limit=_RUNS)
    if workflow is None and not found.roots:
        raise UnknownTask(f"no workflow {name!r:.80}")
    visibility = view.visibility
    signature = "" if workflow is None else visibility.signature(workflow.parameters.signature)
    return {
        "workflow": name,
        "version": "" if workflow is None else workflow.version,
        "signature": signature,
        "description": "" if workflow is None else _description(view, name),
        "deadline": None if workflow is None else workflow.deadline,
        "limit": None if workflow is None else workflow.limit,
        "graph": None if workflow is None else workflow.shape,
        "parameters": None if workflow is None else form_fields(workflow, visibility),
        "graphs": [_row(root, view) for root in found.roots[:_RUNS]],
        "is_more": len(found.roots) > _RUNS or found.after is not None,
    }


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
    Page(name="workflows", path="/workflows", title="Workflows", read=read_workflows, seconds=5),
    Page(
        name="workflow",
        path="/workflows/{name}",
        title="Workflow",
        read=read_workflow,
        seconds=2,
    ),
)
"""The pages of graphs and workflows."""
