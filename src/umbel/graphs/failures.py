"""Which nodes have failed: those that others were not reached because of."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from umbel.backends import Joins
from umbel.errors import BadMessage, NodeFailed
from umbel.messages import Failure, Member, State, read_node
from umbel.messages.nodes import was_not_needed, was_not_reached

_PAGE = 1_000
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
            return f"{self.failure.type.rpartition(':')[2]}: {self.failure.message}"
        if not self.reason or self.reason.startswith(str(self.state)):
            return self.reason or str(self.state)
        return f"{self.state}: {self.reason}"

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
    joins: Joins, group: str, start: str, first: int = 0, count: int = -1
) -> list[FailedNode]:
    """Return why parts of a join have failed, in the order of time.

    ``first`` and ``count`` say which of its positions are meant. A part that was not reached has
    the failures of the nodes before it.
    """
    failed: dict[str, list[Member]] = {}
    after = ("", -1)
    while page := await joins.members(group, after, _PAGE, failed=True):
        for member in page:
            failed.setdefault(member.join, []).append(member)
        after = (page[-1].join, page[-1].position)
    found: dict[str, FailedNode] = {}
    last = first + count if count >= 0 else 2**31
    left = [one for one in failed.get(start, ()) if first <= one.position < last]
    seen = {start}
    while left:
        member = left.pop()
        before = _join_before(member)
        if not (member.state is State.CANCELLED and was_not_reached(member.reason)):
            found[member.job] = failed_node(member)
        elif before not in seen:
            seen.add(before)
            left += failed.get(before, ())
    return sorted(found.values(), key=lambda one: one.finished)


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


def _join_before(member: Member) -> str:
    try:
        return read_node(member.node).join if member.node else ""
    except BadMessage:
        return ""


def _path(member: Member) -> str:
    try:
        return read_node(member.node).path if member.node else ""
    except BadMessage:
        return ""
