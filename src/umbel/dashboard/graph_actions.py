"""What users can do with graphs and workflows."""

from __future__ import annotations

from typing import Any

import msgspec

from umbel.dashboard.action_requests import Action, ActionRequest, read_call
from umbel.errors import ConfigurationError, NotAllowed, UnknownTask

_SHOWN_NODES = 5


async def _retry_graph(request: ActionRequest) -> str:
    node = request.fields.get("node", "").strip() or None
    start = request.fields.get("from", "").strip() or None
    if node is not None and start is not None:
        raise ConfigurationError("node, from: give one of them")
    text = request.fields.get("arguments", "").strip()
    retried = await request.operations.graphs.retry(
        request.get("graph"),
        node=node,
        start=start,
        arguments=_json("arguments", text) if text else None,
    )
    paths = ", ".join(path or "-" for path in retried.nodes[:_SHOWN_NODES])
    more = len(retried.nodes) - _SHOWN_NODES
    return f"The graph continues, from {paths}{f' and {more:,} more' if more > 0 else ''}."


async def _cancel_graph(request: ActionRequest) -> str:
    if not await request.operations.graphs.cancel(request.get("graph"), request.reason):
        raise NotAllowed("The graph has ended already.")
    return "The graph is cancelled; nodes that run are asked to stop."


async def _resolve_node(request: ActionRequest) -> str:
    node = request.get("node")
    result = _json("result", request.get("result"))
    if not await request.operations.graphs.resolve(request.get("graph"), node, result):
        raise NotAllowed("The node runs now. Cancel its job first, or wait.")
    return "The node has succeeded with this result; the graph continues."


async def _signal(request: ActionRequest) -> str:
    name = request.get("name")
    text = request.fields.get("text")
    value: Any = text
    if text is None:
        written = request.get("value")
        try:
            value = msgspec.json.decode(written)
        except (msgspec.DecodeError, RecursionError):
            value = written
    await request.operations.graphs.signal(
        request.get("graph"), name, value, sender=request.user.name
    )
    return f"The signal {name} was given."


async def _start_workflow(request: ActionRequest) -> str:
    name = request.get("workflow")
    workflow = request.app.workflows.get(name)
    if workflow is None:
        raise UnknownTask(f"this dashboard's application has no workflow {name!r:.80}")
    call = read_call(request.get("arguments"))
    body = request.app.codec.encode(call, what=f"arguments of {name}")
    args, kwargs = workflow.parameters.decode(request.app.codec.decode(body))
    handle = await workflow.adelay(*args, **kwargs)
    request.answer["id"] = handle.id
    return f"Started the run {handle.id}."


def _json(field: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigurationError(f"{field}: this is not JSON: {error}") from None


GRAPH_ACTIONS = (
    Action(
        name="retry-graph",
        summary="Run the failed nodes of a graph again, one of them, or a node and all after it.",
        act=_retry_graph,
        fields=("graph",),
        optional=("node", "from", "arguments", "reason"),
        subject=("graph",),
        filters=("node", "from"),
    ),
    Action(
        name="cancel-graph",
        summary="Cancel all nodes of a graph that have not ended.",
        act=_cancel_graph,
        fields=("graph",),
        optional=("reason",),
        subject=("graph",),
    ),
    Action(
        name="resolve-node",
        summary="Let a node count as succeeded, with this result as JSON.",
        act=_resolve_node,
        fields=("graph", "node", "result"),
        optional=("reason",),
        subject=("graph", "node"),
    ),
    Action(
        name="signal",
        summary="Give a signal of a workflow its value: JSON in value, or a text in text.",
        act=_signal,
        fields=("graph", "name"),
        optional=("value", "text"),
        subject=("graph", "name"),
    ),
    Action(
        name="start-workflow",
        summary="Start a run of a declared workflow.",
        act=_start_workflow,
        fields=("workflow", "arguments"),
        subject=("workflow",),
    ),
)
"""The actions on graphs and workflows."""
