"""Ends a part of a graph early, in the order in which its nodes depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from umbel.backends import Roles
from umbel.graphs.members import live_nodes
from umbel.messages import Delivery, NodeSpec, Outcome, Snoozed, State, Succeeded

_PAGE = 1_000
_FIRST_CHECK_SECONDS = 0.1
_MAX_CHECK_SECONDS = 15.0
MAX_STOP_CHECKS = 10
"""After so many checks, in about a minute, a node that ignores its cancellation is not waited for:
every graph ends."""


async def end_early(
    roles: Roles,
    delivery: Delivery,
    group: str,
    reason: str,
    chosen: Callable[[NodeSpec], bool],
) -> Outcome:
    """Cancel the nodes that are chosen. Return the outcome of the node that does so, a delivery.

    Nodes that are blocked are cancelled last, when none of the others runs any more. Their ends
    would start handlers and undos beside a node that runs.
    """
    live = [one for one, spec in await live_nodes(roles.joins, group) if chosen(spec)]
    active = [one.job for one in live if one.state is not State.BLOCKED]
    states = await cancel_jobs(roles, active, reason)
    if State.RUNNING in states and delivery.lease.fence <= MAX_STOP_CHECKS:
        return check_again(delivery)
    await cancel_jobs(roles, [one.job for one in live if one.state is State.BLOCKED], reason)
    return Succeeded()


def check_again(delivery: Delivery) -> Snoozed:
    """Return the outcome of a node that waits for others to end. Its checks become rarer."""
    checks = min(delivery.lease.fence - 1, 20)
    return Snoozed(min(_FIRST_CHECK_SECONDS * 2**checks, _MAX_CHECK_SECONDS))


async def cancel_jobs(roles: Roles, jobs: Sequence[str], reason: str) -> set[str]:
    """Cancel jobs; return the states that they have now."""
    states: set[str] = set()
    for at in range(0, len(jobs), _PAGE):
        states |= {*(await roles.control.cancel(jobs[at : at + _PAGE], reason)).values()}
    return states
