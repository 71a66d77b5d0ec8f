"""Ends a part of a graph early, in the order in which its nodes depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from umbel.backends import Roles
from umbel.graphs.members import live_nodes
from umbel.messages import NodeSpec, Outcome, Snoozed, State, Succeeded

_PAGE = 1_000
STOP_CHECK_SECONDS = 0.5
"""Time between checks whether nodes that were asked to stop have stopped."""


async def end_early(
    roles: Roles, group: str, reason: str, chosen: Callable[[NodeSpec], bool]
) -> Outcome:
    """Cancel the nodes that are chosen; return the outcome of the node that does so.

    While one of them runs, those that are blocked stay so. Otherwise their ends would let handlers
    and undos run beside it.
    """
    live = [one for one, spec in await live_nodes(roles.joins, group) if chosen(spec)]
    active = [one.job for one in live if one.state is not State.BLOCKED]
    if await cancel_jobs(roles, active, reason) & {State.RUNNING}:
        return Snoozed(STOP_CHECK_SECONDS)
    await cancel_jobs(roles, [one.job for one in live if one.state is State.BLOCKED], reason)
    return Succeeded()


async def cancel_jobs(roles: Roles, jobs: Sequence[str], reason: str) -> set[str]:
    """Cancel jobs; return the states that they have now."""
    found: set[str] = set()
    for at in range(0, len(jobs), _PAGE):
        found |= {*(await roles.control.cancel(jobs[at : at + _PAGE], reason)).values()}
    return found
