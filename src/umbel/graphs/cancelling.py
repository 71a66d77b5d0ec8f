"""Cancels all nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import anyio

from umbel.backends import Roles
from umbel.errors import UmbelError
from umbel.graphs.active_runs import end_run
from umbel.graphs.members import live_nodes
from umbel.graphs.stopping import cancel_jobs
from umbel.messages import NODE_HEADER, NodeSpec, State, read_node

_MAX_TRIES = 20
_RETRY_SECONDS = 0.05


async def cancel_graph(roles: Roles, root: str, reason: str) -> bool:
    """Cancel all nodes of a graph. When it returns, nothing of the graph starts any more, except
    undos.

    Return False if the graph had ended. A node that runs may end later, but does not grow.
    """
    answer = await roles.control.cancel([root], reason)
    if answer.get(root) != "cancelled":  # a root that runs is the end: its nodes have ended
        return False
    await _cancel_nodes(roles, root, reason, lambda spec: spec.handler)  # before something fails
    while await _cancel_nodes(roles, root, reason, lambda spec: True):
        pass  # a node that ended meanwhile may have queued others
    with suppress(UmbelError):  # a run that waits finds out by itself
        await _let_next_begin(roles, root)
    return True


async def _let_next_begin(roles: Roles, root: str) -> None:
    """Let the next runs begin if the graph is a run of a workflow with a limit."""
    spec = read_node((await roles.records.find(root)).headers.get(NODE_HEADER, "{}"))
    for _ in range(_MAX_TRIES if spec.limit else 0):
        if await end_run(roles, spec.workflow, root):
            return
        await anyio.sleep(_RETRY_SECONDS)


async def _cancel_nodes(
    roles: Roles, root: str, reason: str, chosen: Callable[[NodeSpec], bool]
) -> bool:
    """Cancel the live nodes that are chosen. Return whether one had not started.

    Undos are not cancelled, nor the node that publishes them when all others have ended.
    """
    found = [
        member.job
        for member, spec in await live_nodes(roles.joins, root)
        if spec.kind not in ("graph", "undo") and not spec.undoes and chosen(spec)
    ]
    return State.CANCELLED in await cancel_jobs(roles, found, reason)
