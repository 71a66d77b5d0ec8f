"""What a worker does for nodes of workflows that run no task: signals, timers, undos, deadlines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from umbel.backends import Roles
from umbel.errors import BadMessage, UnknownJob
from umbel.graphs.active_runs import take_place
from umbel.graphs.launching import launched, live_roots
from umbel.graphs.members import live_nodes
from umbel.graphs.stopping import MAX_STOP_CHECKS, check_again, end_early
from umbel.graphs.workflow_parts import FOREVER_SECONDS
from umbel.messages import (
    GROUP_HEADER,
    NODE_HEADER,
    NOMINAL_TIME,
    SCHEDULE,
    BodyCodec,
    Cancelled,
    Delivery,
    Edge,
    Envelope,
    Failed,
    Growth,
    Input,
    Join,
    NodeSpec,
    Outcome,
    Publication,
    Reference,
    Snoozed,
    State,
    Succeeded,
    Wait,
    derived_id,
)
from umbel.messages.joins import cancel_reason
from umbel.messages.nodes import mark_of, read_reference, without_marks
from umbel.tasks.failures import describe

DEADLINE_PASSED = "the deadline of the workflow has passed"
_TRY_AGAIN_SECONDS = 0.2
"""A signal that a worker is just preparing cannot be ended. It is tried again after this time."""
_OVERLAP_CHECK_SECONDS = 2.0
TIMERS = ("timer", "deadline")
Values = Sequence[tuple[tuple[str | int, ...], Any]]


class PreparedNode(NamedTuple):
    """What to do with a node: run its task with these values, or settle it with an outcome."""

    values: Values
    outcome: Outcome | None = None
    growth: Growth | None = None


Run = Callable[[Roles, BodyCodec, Delivery, NodeSpec, str], Awaitable[PreparedNode]]


async def _run_signal(
    roles: Roles, codec: BodyCodec, delivery: Delivery, spec: NodeSpec, group: str
) -> PreparedNode:
    """Keep waiting: a signal is ended by its value, its timeout, or a failure before it."""
    return PreparedNode([], Snoozed(FOREVER_SECONDS))


async def _run_timer(
    roles: Roles, codec: BodyCodec, delivery: Delivery, spec: NodeSpec, group: str
) -> PreparedNode:
    """End a signal that was not given in time."""
    data = codec.decode(delivery.envelope.body)
    defaults = data["args"][1:]  # after its seconds
    if defaults:
        body = codec.encode(defaults[0], what=f"default of signal {spec.label}")
        outcome: Succeeded | Failed = Succeeded(body)
    else:
        text = f"no signal {spec.label} was given in time"
        outcome = Failed(describe(TimeoutError(text)))
    if not await roles.joins.resolve(spec.target, outcome):
        record = await roles.records.find(spec.target)
        if record.state is State.RUNNING:
            return PreparedNode([], Snoozed(_TRY_AGAIN_SECONDS))
    return PreparedNode([], Succeeded())


async def _run_release(
    roles: Roles, codec: BodyCodec, delivery: Delivery, spec: NodeSpec, group: str
) -> PreparedNode:
    """End a signal because a node before it has failed."""
    states = await roles.control.cancel([spec.target], cancel_reason("success"))
    if states.get(spec.target) is State.RUNNING:
        return PreparedNode([], Snoozed(_TRY_AGAIN_SECONDS))
    return PreparedNode([], Succeeded())


async def _run_deadline(
    roles: Roles, codec: BodyCodec, delivery: Delivery, spec: NodeSpec, group: str
) -> PreparedNode:
    """Cancel what has not ended, except handlers, undos and the root, which then fails."""
    kept = ("graph", "undo", "deadline")
    outcome = await end_early(
        roles,
        delivery,
        group,
        DEADLINE_PASSED,
        lambda one: one.kind not in kept and not one.handler and not one.undoes,
    )
    return PreparedNode([], outcome)


async def _run_place(
    roles: Roles, codec: BodyCodec, delivery: Delivery, spec: NodeSpec, group: str
) -> PreparedNode:
    """Wait until the limit of the workflow lets this run begin."""
    return PreparedNode([], await take_place(roles, delivery, spec, group))


async def _run_undo(
    roles: Roles, codec: BodyCodec, delivery: Delivery, spec: NodeSpec, group: str
) -> PreparedNode:
    """Publish the undos of the nodes that have succeeded, if the graph has not."""
    root = await roles.records.find(group)
    is_kept = root.state is State.CANCELLED and not spec.on_cancel
    if root.state is State.SUCCEEDED or is_kept:
        return PreparedNode([], Succeeded())
    if not root.state.finished:  # it was retried when this node had just begun
        return PreparedNode([], check_again(delivery))
    live = await live_nodes(roles.joins, group)
    is_running = any(one.state is State.RUNNING and _may_be_undone(spec) for one, spec in live)
    if is_running and delivery.lease.fence <= MAX_STOP_CHECKS:
        return PreparedNode([], check_again(delivery))
    data = codec.decode(delivery.envelope.body)
    undos = [one for one in data.get("args", []) if await _has_succeeded(roles, one["job"])]
    if not undos:
        return PreparedNode([], Succeeded())
    growth = _undo_growth(undos, delivery, group)
    return PreparedNode([], Succeeded(), growth)


def _may_be_undone(spec: NodeSpec) -> bool:
    return not (spec.handler or spec.undoes or spec.kind == "undo")


def _undo_growth(undos: Sequence[dict[str, Any]], delivery: Delivery, group: str) -> Growth:
    """Return the undos: each waits for those of the nodes that came after its node."""
    job, fence = delivery.lease.job, delivery.lease.fence
    ids = {one["job"]: derived_id(job, fence, number) for number, one in enumerate(undos)}
    envelopes: list[Envelope] = []
    joins: list[Join] = []
    edges: list[Edge] = []
    waits: list[Wait] = []
    for one in undos:
        own, join = ids[one["job"]], f"{ids[one['job']]}:undo"
        # It does not wait for the node itself: it must not run again if that is run again.
        before = [ids[other] for other in one["after"] if other in ids]
        inputs = (Input(("args", 0), "undone", 0, 0),) if one["gets_result"] else ()
        spec = NodeSpec(
            path=one["path"], join=join if before else "", inputs=inputs, undoes=one["job"]
        )
        try:
            envelope = msgspec.convert(one["envelope"], Envelope)
        except msgspec.ValidationError as error:
            raise BadMessage("data", f"the undo of node {one['path']}: {error}") from None
        headers = {**envelope.headers, GROUP_HEADER: group, NODE_HEADER: spec.encode()}
        envelopes.append(replace(envelope, id=own, headers=headers))
        joins += [Join(join, group, "all")] if before else []
        edges += [Edge(part, join, position) for position, part in enumerate(before)]
        waits += [Wait(own, join)] if before else []
    # It makes the last undo a member of the graph, and keeps the node that undoes one: a retry has
    # to see that it runs.
    shown = f"{job}:{fence}:undos"
    joins.append(Join(shown, group, "all"))
    edges += [Edge(own, shown, position) for position, own in enumerate((*ids.values(), job))]
    publication = Publication(
        envelopes=tuple(envelopes), joins=tuple(joins), edges=tuple(edges), waits=tuple(waits)
    )
    return Growth(publication, envelopes[0].id)


async def _run_launch(
    roles: Roles, codec: BodyCodec, delivery: Delivery, spec: NodeSpec, group: str
) -> PreparedNode:
    """Publish the graph of a schedule, unless the one before it has not ended."""
    envelope = delivery.envelope
    schedule = envelope.headers.get(SCHEDULE, "")
    if schedule and (envelope.unique is not None or delivery.slots):
        async for record in live_roots(roles.records):
            if record.headers.get(SCHEDULE) == schedule:
                if delivery.slots:  # overlap="queue"
                    return PreparedNode([], Snoozed(_OVERLAP_CHECK_SECONDS))
                reason = f"skipped: graph {record.id} of the same schedule has not ended"
                return PreparedNode([], Cancelled(reason))
    names = (SCHEDULE, NOMINAL_TIME)
    headers = {name: envelope.headers[name] for name in names if name in envelope.headers}
    growth = launched(codec.decode(envelope.body), delivery.id, headers)
    return PreparedNode([], Succeeded(Reference(job=growth.replacement).body), growth)


async def _has_succeeded(roles: Roles, job: str) -> bool:
    try:
        record = await roles.records.find(job)
    except UnknownJob:
        return False
    if record.state is not State.SUCCEEDED or record.result is None:
        return record.state is State.SUCCEEDED
    reference = read_reference(without_marks(record.result))
    if reference is not None and reference.job:  # what has taken its place counts
        return await _has_succeeded(roles, reference.job)
    return mark_of(record.result.content_type, "skipped") is None


async def cancel_timers(roles: Roles, group: str) -> None:
    """Cancel the timers of a workflow that has ended, except of signals that still wait."""
    live = await live_nodes(roles.joins, group)
    jobs = {member.job for member, _ in live}
    found = [
        member.job
        for member, spec in live
        if spec.kind in TIMERS and (spec.kind == "deadline" or spec.target not in jobs)
    ]
    if found:
        await roles.control.cancel(found, "the workflow has ended")


RUNS: dict[str, Run] = {
    "signal": _run_signal,
    "timer": _run_timer,
    "release": _run_release,
    "deadline": _run_deadline,
    "place": _run_place,
    "undo": _run_undo,
    "launch": _run_launch,
}
"""What is done for each of these kinds."""
