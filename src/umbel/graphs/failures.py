"""Which nodes have failed by themselves, so that others were not reached."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from umbel.backends import Joins
from umbel.errors import NodeFailed
from umbel.graphs.members import all_members, own_spec
from umbel.messages import Failure, Member, NodeSpec, State
from umbel.messages.nodes import MEMBER_FAILED, was_not_needed, was_not_reached
from umbel.urls import mask_secrets

_NODE_FAILED = f"umbel.errors:{NodeFailed.__name__}"


class FailedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that has ended without success by itself, not because of another."""

    path: str
    task: str
    job: str
    state: State
    failure: Failure | None = None
    reason: str = ""
    finished: float = 0.0

    @property
    def label(self) -> str:
        """What error texts call it."""
        return f"{self.path or '0'} {self.task}"

    @property
    def error(self) -> str:
        """The last line of its traceback, or what happened to it."""
        if self.failure is not None:
            return self.failure.line
        reason = mask_secrets(self.reason)
        if not reason or reason.startswith(str(self.state)):
            return reason or str(self.state)
        return f"{self.state}: {reason}"

    def as_failure(self) -> Failure:
        """Return its failure as that of the whole graph."""
        if self.failure is not None:
            return msgspec.structs.replace(self.failure, node=self.label, job=self.job)
        return Failure(_NODE_FAILED, self.error, node=self.label, job=self.job)

    def as_error(self, others: Sequence[FailedNode] = (), graph: str = "") -> NodeFailed:
        """Return what a handler, or a list that collects failures, gets for it."""
        more = [other.as_error(graph=graph) for other in others]
        return NodeFailed(self.label, self.job, self.error, more, graph)


async def find_failures(
    joins: Joins, group: str, spec: NodeSpec, *, scope: str = ""
) -> list[FailedNode]:
    """Return why parts of a node's join have failed that it needs, in the order of time.

    A part that was not reached has the failures of the nodes before it. With ``scope``, only nodes
    of this part of the graph are returned.
    """
    failed: dict[str, list[Member]] = {}
    async for member in all_members(joins, group, failed=True):
        failed.setdefault(member.join, []).append(member)
    found: dict[str, FailedNode] = {}
    left = [(one, spec) for one in failed.get(spec.join, ()) if spec.needs(one.position)]
    seen = {spec.join}
    while left:
        member, reader = left.pop()
        before = own_spec(member, group)
        if before is None or not (
            member.state is State.CANCELLED and was_not_reached(member.reason)
        ):
            path = before.path if before is not None else reader.foreign or ""
            if not scope or path == scope or path.startswith(f"{scope}."):
                found[member.job] = failed_node(member)
        elif before.join not in seen:
            seen.add(before.join)
            left += [
                (one, before) for one in failed.get(before.join, ()) if before.needs(one.position)
            ]
    # Those that were cancelled because of another come last, also if the clock is coarse.
    return sorted(found.values(), key=lambda one: (one.reason == MEMBER_FAILED, one.finished))


def failed_node(member: Member) -> FailedNode:
    """Return a member of a group that has failed."""
    return FailedNode(
        path=_path(member),
        task=member.task,
        job=member.job,
        state=member.state,
        failure=member.failure,
        reason=member.reason,
        finished=member.finished or 0.0,
    )


def is_failure(state: State, reason: str) -> bool:
    """Return whether a node has failed by itself."""
    if state is State.CANCELLED:
        return not (was_not_reached(reason) or was_not_needed(reason))
    return state.finished and state is not State.SUCCEEDED


def _path(member: Member) -> str:
    spec = own_spec(member, member.graph)
    return spec.path if spec is not None else ""
