"""Prepares a node that has been claimed: reads what it gets, and does what needs no task."""

from __future__ import annotations

from typing import Any

from umbel.backends import Roles
from umbel.errors import BadArguments, BadMessage, NodeFailed, NotAllowed, UmbelError, Unavailable
from umbel.graphs.active_runs import end_run
from umbel.graphs.conditions import WHEN, holds
from umbel.graphs.failures import find_failures
from umbel.graphs.growing import MapExpander, as_items, wait_again
from umbel.graphs.stopping import MAX_STOP_CHECKS, check_again, end_early
from umbel.graphs.values import SKIPPED, ResultReader
from umbel.graphs.workflow_nodes import RUNS, TIMERS, PreparedNode, cancel_timers
from umbel.messages import (
    GROUP_HEADER,
    NODE_HEADER,
    BodyCodec,
    Cancelled,
    Delivery,
    Failed,
    NodeSpec,
    Outcome,
    Reference,
    Rejected,
    Succeeded,
    read_node,
)
from umbel.messages.nodes import (
    MEMBER_FAILED,
    NO_VALUE,
    NOT_IN_SCOPE,
    mark_of,
    with_mark,
    without_marks,
)
from umbel.tasks import Registry
from umbel.tasks.failures import describe


def must_prepare(delivery: Delivery) -> bool:
    """Whether a job is a node that reads results of others, or runs no task."""
    header = delivery.envelope.headers.get(NODE_HEADER)
    if header is None:
        return False
    try:
        return read_node(header).must_read
    except BadMessage:
        return True  # it is rejected there


class NodePreparer:
    """Prepares nodes. Needs no more rights than a worker behind a link has."""

    def __init__(self, roles: Roles, registry: Registry, codec: BodyCodec) -> None:
        self._roles = roles
        self._registry = registry
        self._codec = codec
        self._reader = ResultReader(roles.joins, roles.records, codec)

    async def prepare(self, delivery: Delivery) -> PreparedNode:
        """Return what to do with a node. Raise Unavailable."""
        headers = delivery.envelope.headers
        try:
            spec = read_node(headers[NODE_HEADER])
            group = "" if spec.kind == "launch" else headers[GROUP_HEADER]
        except (BadMessage, KeyError) as error:
            return PreparedNode([], Rejected(f"node: {error}"))
        try:
            return await self._prepare(delivery, spec, group)
        except Unavailable:
            raise
        except UmbelError as error:
            return PreparedNode([], Failed(describe(error)))

    async def _prepare(self, delivery: Delivery, spec: NodeSpec, group: str) -> PreparedNode:
        if spec.kind == "graph":
            return PreparedNode([], await self._end_graph(spec, group, delivery))
        failed: NodeFailed | None = None
        if spec.foreign is not None:
            try:
                if await self._reader.awaits_replacement(spec):
                    return PreparedNode([], check_again(delivery))
            except NodeFailed as error:
                if not spec.acts:
                    raise
                failed = error
            if spec.acts and not await self._must_act(spec, group, failed):
                return PreparedNode([], Cancelled(NOT_IN_SCOPE))
        if spec.kind in TIMERS and (again := await self._wait_again(delivery, spec)) is not None:
            return again
        if spec.kind in RUNS:
            return await RUNS[spec.kind](self._roles, self._codec, delivery, spec, group)
        if spec.kind == "cancel":
            return PreparedNode([], await self._cancel_group(spec, group, delivery, failed))
        if spec.kind == "gather":
            return PreparedNode(
                [], await self._reader.check(spec, group) or await self._pass_on(spec)
            )
        values, outcome = await self._reader.inputs(spec, group, failed)
        if outcome is not None:
            return PreparedNode([], outcome)
        if spec.kind == "sleep":
            again = await self._wait_again(delivery, spec)
            return again or PreparedNode([], await self._pass_on(spec))
        if spec.when is not None:
            inputs = {keys[1]: value for keys, value in values if keys[0] == WHEN}
            if not _holds(spec, inputs):
                return PreparedNode([], SKIPPED)
            values = [(keys, value) for keys, value in values if keys[0] != WHEN]
        task = self._registry.get(delivery.envelope.subject)
        if spec.kind != "map" or task is None:  # of an unknown task, the activation says so
            return PreparedNode(values)
        items = as_items(values[0][1], spec.path)
        growth = MapExpander(task, delivery, spec, self._codec).expand(items)
        return PreparedNode([], Succeeded(Reference(job=growth.replacement).body), growth)

    async def _wait_again(self, delivery: Delivery, spec: NodeSpec) -> PreparedNode | None:
        """Return what replaces a node that waits for time to pass, if it is retried."""
        before = [part.job for part in await self._reader.parts(spec.join)] if spec.join else []
        again = wait_again(delivery, spec, self._codec, before)
        if again is None:
            return None
        return PreparedNode([], Succeeded(Reference(job=again.replacement).body), again)

    async def _end_graph(self, spec: NodeSpec, group: str, delivery: Delivery) -> Outcome:
        """Return the outcome of the whole graph: its value, or its first failure."""
        failures = await find_failures(self._roles.joins, group, spec)
        failed = Failed(failures[0].as_failure()) if failures else None
        if failed is None and spec.foreign is not None:
            try:
                if await self._reader.awaits_replacement(spec):
                    return check_again(delivery)
            except NodeFailed as error:
                failed = Failed(describe(error))
        if spec.workflow:
            await cancel_timers(self._roles, group)
        has_ended = not spec.limit or await self._let_next_begin(spec, group)
        if not has_ended and delivery.lease.fence <= MAX_STOP_CHECKS:
            return check_again(delivery)
        if failed is not None:
            return failed
        finished = await self._reader.finished(spec, group)
        if finished is not None and finished.result is not None:
            return Succeeded(with_mark(without_marks(finished.result), "early"))
        return await self._pass_on(spec)

    async def _let_next_begin(self, spec: NodeSpec, group: str) -> bool:
        """Let the next runs of a workflow with a limit begin. Return whether they have."""
        try:
            return await end_run(self._roles, spec.workflow, group)
        except NotAllowed:  # behind a link: a run that waits finds out by itself
            return True

    async def _pass_on(self, spec: NodeSpec) -> Succeeded:
        """Return what a node gets as its own result. A skipped result stays skipped."""
        if not spec.inputs:
            return Succeeded(NO_VALUE)
        (only,) = spec.inputs
        if only.form != "one":
            return _gathered(spec)
        parts = await self._reader.parts(spec.join, only.first + 1)
        if not parts:
            raise NodeFailed(spec.path, "", "the node with its result was deleted")
        result = parts[-1].result or NO_VALUE
        if spec.kind != "graph" and mark_of(result.content_type, "skipped") is not None:
            return SKIPPED
        if spec.kind == "graph" and mark_of(result.content_type, "finish") is not None:
            return Succeeded(with_mark(without_marks(result), "early"))
        return Succeeded(without_marks(result))

    async def _must_act(self, spec: NodeSpec, group: str, failed: NodeFailed | None) -> bool:
        return failed is not None or bool(await find_failures(self._roles.joins, group, spec))

    async def _cancel_group(
        self, spec: NodeSpec, group: str, delivery: Delivery, failed: NodeFailed | None
    ) -> Outcome:
        """Cancel the live nodes of a group if a member has failed by itself."""
        member = await self._reader.parts(spec.join, 1)
        if member and member[0].reason == MEMBER_FAILED:
            return Cancelled(NOT_IN_SCOPE)  # the member that failed cancels the others
        causes = await find_failures(self._roles.joins, group, spec, scope=spec.label)
        if not causes and failed is None:
            return Cancelled(NOT_IN_SCOPE)
        return await end_early(
            self._roles, delivery, group, MEMBER_FAILED, lambda one: _is_member(one, spec.label)
        )


def _is_member(spec: NodeSpec, scope: str) -> bool:
    """Whether a node belongs to a member of a group."""
    own_list = f"{scope}.list" if scope else "list"
    if spec.handler or spec.kind in ("cancel", "graph") or spec.path == own_list:
        return False
    return not scope or spec.path.startswith(f"{scope}.")


def _holds(spec: NodeSpec, inputs: dict[Any, Any]) -> bool:
    try:
        return holds(spec.when, inputs)
    except TypeError as error:
        raise BadArguments(f"condition of node {spec.path}: {error}") from None


def _gathered(spec: NodeSpec) -> Succeeded:
    if not spec.inputs:
        return Succeeded(NO_VALUE)
    (only,) = spec.inputs
    return Succeeded(
        Reference(
            join=spec.join,
            count=only.count,
            flat=only.form == "flat",
            collect=only.collect,
        ).body
    )
