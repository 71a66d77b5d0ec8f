"""A graph in a list, as plain data, for programs and pages."""

from __future__ import annotations

from typing import Any

from umbel.graphs import graph_note
from umbel.messages import NODE_HEADER, NodeSpec, Record, State, read_node

GRAPH_STATES = {
    "running": (State.BLOCKED, State.QUEUED, State.RUNNING, State.SCHEDULED, State.WAITING),
    "failed": (State.BURIED,),
    "succeeded": (State.SUCCEEDED,),
    "cancelled": (State.CANCELLED,),
}
"""What people call the state of a graph, and the states of its root."""


def graph_state(state: State) -> str:
    """Return what people call the state of a graph."""
    return next((name for name, states in GRAPH_STATES.items() if state in states), str(state))


def graph_spec(record: Record) -> NodeSpec:
    """Return what the root of a graph says about it."""
    return read_node(record.headers.get(NODE_HEADER, "{}"))


def is_run_of(record: Record, workflow: str) -> bool:
    """Return whether a graph is a run of a workflow."""
    return graph_spec(record).workflow == workflow


def graph_document(record: Record) -> dict[str, Any]:
    """Return the root of a graph as plain data."""
    spec = graph_spec(record)
    return {
        "id": record.id,
        "graph": spec.label,
        "workflow": spec.workflow,
        "version": spec.version,
        "tasks": spec.total,
        "state": graph_state(record.state),
        "created": record.created,
        "finished": record.finished,
        "note": graph_note(record),
    }
