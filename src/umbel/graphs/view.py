"""Reads a graph as it is now from the store."""

from __future__ import annotations

from urllib.parse import unquote

from umbel.backends import Joins, Records
from umbel.errors import BadMessage, NotAllowed
from umbel.graphs.failures import failed_node, is_failure
from umbel.messages import (
    GRAPH_TASK,
    NODE_HEADER,
    REFERENCE,
    Member,
    NodeSpec,
    Record,
    State,
    read_node,
)
from umbel.messages.graphs import (
    WAITS_FOR_TIME,
    Graph,
    GraphNode,
    in_reading_order,
    subgraphs,
)
from umbel.messages.nodes import mark_of, was_not_needed
from umbel.urls import mask_secrets

_PAGE = 1_000
_NO_SPEC = NodeSpec()
_MAY_BE_REPLACED = ("", "map", *WAITS_FOR_TIME)


async def read_graph(joins: Joins, records: Records, root: str) -> Graph:
    """Return a graph. Raise UnknownJob, or NotAllowed if the job is not the root of a graph."""
    record = await records.find(root)
    if record.task != GRAPH_TASK:
        raise NotAllowed(f"job {root} of {record.task} is no graph; see umbel graphs list")
    members: list[Member] = []
    after = ("", -1)
    while page := await joins.members(root, after, _PAGE):
        members += page
        after = (page[-1].join, page[-1].position)
    parts: dict[str, list[str]] = {}
    for member in members:
        parts.setdefault(member.join, []).append(member.job)
    found: dict[str, GraphNode] = {}
    for member in members:
        if member.job not in found and member.job != root:
            found[member.job] = _node(member, parts)
    spec = _spec(record.headers.get(NODE_HEADER, ""))
    return Graph(
        id=root,
        label=spec.label,
        state=record.state,
        nodes=in_reading_order(found.values()),
        created=record.created,
        finished=record.finished,
        error=graph_note(record),
        root=GraphNode(
            path="",
            task=record.task,
            job=root,
            state=record.state,
            kind="graph",
            before=tuple(parts.get(spec.join, ())),
            created=record.created,
            started=record.started,
            finished=record.finished,
        ),
        workflow=spec.workflow,
        version=spec.version,
    )


def node_name(spec: NodeSpec, task: str) -> str:
    """Return what a node is called."""
    if spec.kind == "signal":
        return f"signal {spec.signal}"
    if spec.kind == "sleep":
        return f"sleep of {spec.label}"
    if spec.kind == "place":
        return f"limit {spec.limit}"
    return f"undo: {task}" if spec.undoes else task


def _node(member: Member, parts: dict[str, list[str]]) -> GraphNode:
    spec = _spec(member.node) if member.node else _NO_SPEC
    is_own = bool(member.node) and spec.kind != "graph"
    is_skipped = mark_of(member.result_type, "skipped") is not None
    is_timer = spec.kind in ("timer", "deadline")  # cancelled when it has no effect any more
    is_failed = is_failure(member.state, member.reason) and not is_timer
    error = failed_node(member).error if member.state.finished and (
        member.state is not State.SUCCEEDED and not was_not_needed(member.reason)
    ) else ""  # fmt: skip
    if spec.kind == "place" and not member.state.finished:
        error = f"waits for a place: limit {spec.limit} of workflow {spec.label}"
    return GraphNode(
        path=spec.path if is_own else "",
        task=node_name(spec, member.task),
        job=member.job,
        state="skipped" if is_skipped else member.state,
        kind=spec.kind if is_own else "",
        handler=spec.handler,
        before=tuple(parts.get(spec.join, ())) if is_own else (),
        created=member.created,
        started=member.started,
        finished=member.finished,
        error=error,
        failed=is_failed,
        worker=member.worker,
        undoes=spec.undoes,
        replaced=spec.kind in _MAY_BE_REPLACED and (member.result_type or "").startswith(REFERENCE),
        resolved_in=unquote(mark_of(member.result_type, "resolved") or ""),
        inside=subgraphs(spec.path, spec.inside),
    )


def _spec(header: str) -> NodeSpec:
    try:
        return read_node(header)
    except BadMessage:
        return _NO_SPEC


def graph_note(root: Record) -> str:
    """Return why a graph has failed or was cancelled."""
    failure = root.failure
    if failure is None:
        return mask_secrets(root.reason)
    return f"node {failure.node}: {failure.line}" if failure.node else failure.line
