"""Cancels all nodes of a graph."""

from __future__ import annotations

from umbel.backends import Roles
from umbel.errors import BadMessage
from umbel.messages import Member, read_node

_PAGE = 1_000


async def cancel_graph(roles: Roles, root: str, reason: str) -> bool:
    """Cancel all nodes of a graph. When it returns, nothing of the graph starts any more.

    Return False if the graph had ended. A node that runs may end later, but does not grow.
    """
    answer = await roles.control.cancel([root], reason)
    if answer.get(root) not in ("running", "cancelled"):
        return False
    live = True
    while live:  # a node that ends meanwhile may have queued others
        live, after = False, ("", -1)
        while page := await roles.joins.members(root, after, _PAGE):
            found = [one.job for one in page if not one.state.finished and _is_own(one)]
            if found:
                states = await roles.control.cancel(found, reason)
                live = live or any(state == "cancelled" for state in states.values())
            after = (page[-1].join, page[-1].position)
    return True


def _is_own(member: Member) -> bool:
    """Whether a part is a node of the graph, and not a job that was published before it.

    The node that undoes others is not cancelled: it runs when all others have ended.
    """
    try:
        return bool(member.node) and read_node(member.node).kind not in ("graph", "undo")
    except BadMessage:
        return True
