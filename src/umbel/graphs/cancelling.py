"""Cancels all nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable

from umbel.backends import Roles
from umbel.errors import BadMessage
from umbel.messages import Member, NodeSpec, read_node

_PAGE = 1_000


async def cancel_graph(roles: Roles, root: str, reason: str) -> bool:
    """Cancel all nodes of a graph. When it returns, nothing of the graph starts any more.

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
    """Cancel the live nodes that are chosen. Return whether one had not started."""
    found_one, after = False, ("", -1)
    while page := await roles.joins.members(root, after, _PAGE):
        live = [one for one in page if not one.state.finished and _is_own(one, chosen)]
        if live:
            states = await roles.control.cancel([one.job for one in live], reason)
            found_one = found_one or "cancelled" in states.values()
        after = (page[-1].join, page[-1].position)
    return found_one


def _is_own(member: Member, chosen: Callable[[NodeSpec], bool]) -> bool:
    """Whether a part is such a node of the graph, and not a job that was published before it.

    The node that undoes others is not cancelled: it runs when all others have ended.
    """
    try:
        spec = read_node(member.node) if member.node else None
        return spec is not None and spec.kind not in ("graph", "undo") and chosen(spec)
    except BadMessage:
        return True
