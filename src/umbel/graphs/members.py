"""The parts of a graph as the store has them: its nodes, and jobs that were published before it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from umbel.backends import Joins
from umbel.errors import BadMessage
from umbel.messages import Member, NodeSpec, read_node

_PAGE = 1_000


async def all_members(
    joins: Joins, group: str, *, failed: bool = False, join: str = ""
) -> AsyncIterator[Member]:
    """Yield the parts of the joins of a group, from a join on; on request only failed ones."""
    after = (join, -1)
    while page := await joins.members(group, after, _PAGE, failed=failed):
        for member in page:
            yield member
        after = (page[-1].join, page[-1].position)


def own_spec(member: Member, group: str) -> NodeSpec | None:
    """Return the header of a node of this graph; None for a job that was published before it."""
    if not member.node or member.graph != group:
        return None
    try:
        return read_node(member.node)
    except BadMessage:
        return NodeSpec()  # its worker rejects it


async def live_nodes(joins: Joins, group: str) -> list[tuple[Member, NodeSpec]]:
    """Return the nodes of a graph that have not ended, each once."""
    found: dict[str, tuple[Member, NodeSpec]] = {}
    async for member in all_members(joins, group):
        spec = None if member.state.finished else own_spec(member, group)
        if spec is not None:
            found[member.job] = (member, spec)
    return [*found.values()]
