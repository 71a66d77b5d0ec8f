"""Cancels all nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable

from umbel.backends import Roles
from umbel.graphs.members import live_nodes
from umbel.graphs.stopping import cancel_jobs
from umbel.messages import NodeSpec, State


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
    return True


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
