"""What is shown of the node, or of the box of nodes, that is selected in the drawing of a graph."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from umbel.dashboard.views import View
from umbel.dashboard.visibility import parameter_name
from umbel.errors import UmbelError, UnknownJob
from umbel.graphs import Box, Graph, GraphNode
from umbel.messages import Record, State
from umbel.operations import NodeInput
from umbel.tasks import Task

_VALUES_SECONDS = 1.0
"""How long the values of a node are read. A result may refer to thousands of others."""
_BOX_NODES = 100
_FIRST_STATES = ("buried", "expired", "running", "cancelled")
"""The nodes of a box in these states are listed first."""


async def selected(graph: Graph, drawn: list[Box], view: View) -> dict[str, Any]:
    """Return the node or the box that the address names."""
    number = view.query.get("box", "")
    if number.isascii() and number.isdigit() and int(number[:6]) < len(drawn):
        box = drawn[int(number[:6])]
        order = {state: at for at, state in enumerate(_FIRST_STATES)}
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
    panel["result"] = await visible_result(record, view)
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
    kind, *rest = one.keys
    key = rest[0] if rest else kind
    parameter = parameter_name(task, key) or (key if isinstance(key, str) else "")
    return key, parameter, [parameter, *map(str, rest)]


async def visible_result(record: Record, view: View) -> Any:
    """Return the result of a node as the user may see it; None if it has none that can be read."""
    if record.state is not State.SUCCEEDED:
        return None
    try:
        async with asyncio.timeout(_VALUES_SECONDS):
            value = await view.operations.graphs.result(record)
    except (TimeoutError, UmbelError):
        return None
    return view.visibility.value(value)
