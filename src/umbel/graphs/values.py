"""Reads results by reference: what a node gets when it starts, and what ``get()`` returns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from umbel.backends import Joins, Records
from umbel.errors import BadArguments, BadMessage, NodeFailed, UnknownJob
from umbel.graphs.failures import find_failures
from umbel.messages import (
    GROUP_HEADER,
    NODE_HEADER,
    Body,
    BodyCodec,
    Cancelled,
    Input,
    NodeSpec,
    Outcome,
    PartResult,
    Record,
    Reference,
    State,
    Succeeded,
    read_node,
)
from umbel.messages.nodes import (
    ALL_PARTS,
    BEFORE_IT_FAILED,
    NO_VALUE,
    NOT_IN_SCOPE,
    mark_of,
    read_reference,
    was_not_reached,
    with_mark,
    without_marks,
)
from umbel.tasks.conditions import pick_item

_PAGE = 1_000
SKIPPED = Succeeded(with_mark(NO_VALUE, "skipped"))
"""The outcome of a node that is skipped."""
_MARKED = 100
"""How many parts are searched for a mark."""
_MAX_REFERENCES = 1_000
"""How many references may follow one another."""


class NodeInputs(NamedTuple):
    """What a node gets: results by the keys of its arguments, or its outcome if it does not run."""

    values: list[tuple[tuple[str | int, ...], Any]]
    outcome: Outcome | None = None


class ResultReader:
    """Reads the results of nodes."""

    def __init__(self, joins: Joins, records: Records, codec: BodyCodec) -> None:
        self._joins = joins
        self._records = records
        self._codec = codec

    async def inputs(
        self, spec: NodeSpec, group: str, failed: NodeFailed | None = None
    ) -> NodeInputs:
        """Return what a node gets, or its outcome if it cannot run or is skipped.

        ``failed`` is the failure of what has replaced a job that was published before the graph.
        """
        if not spec.inputs:
            return NodeInputs([], await self.check(spec, group))
        if spec.inputs[0].form == "failure":
            return await self._failure(spec, group, failed)
        parts = await self.parts(spec.join)
        if spec.checks and any(_stops(spec, part.position, part.state) for part in parts):
            return NodeInputs([], Cancelled(BEFORE_IT_FAILED))
        read = [parts[one.first : one.first + one.count] for one in spec.inputs]
        if _all_skipped(spec, read):
            return NodeInputs([], SKIPPED)
        for part in parts:
            if part.result and _finishes(spec, part.result.content_type):
                return NodeInputs([], Succeeded(part.result))
        values = [
            (one.keys, await self._input(one, some, spec.join))
            for one, some in zip(spec.inputs, read, strict=True)
            if one.form != "undone"
        ]
        values += [
            (one.keys, await self._value_of_job(spec.undoes, 0))
            for one in spec.inputs
            if one.form == "undone"
        ]
        return NodeInputs(values)

    async def awaits_replacement(self, spec: NodeSpec) -> bool:
        """Whether a job of its join, published before the graph, was replaced and has not ended.

        Raises:
            NodeFailed: a replacement has failed that it needs.
        """
        failed = ""
        for part in await self.parts(spec.join):
            body = part.result
            while body is not None:
                reference = read_reference(without_marks(body))
                if reference is None or not reference.job:
                    break
                record = await self._found(reference.job)
                if record is not None and not record.state.finished:
                    return True
                has_succeeded = record is not None and record.state is State.SUCCEEDED
                if not has_succeeded and spec.needs(part.position):
                    failed = failed or reference.job
                body = record.result if record is not None and has_succeeded else None
        if failed:
            raise await self.failure_of(failed)
        return False

    async def _found(self, job: str) -> Record | None:
        with suppress(UnknownJob):
            return await self._records.find(job)
        return None

    async def check(self, spec: NodeSpec, group: str) -> Outcome | None:
        """Return the outcome of a node that cannot run or is skipped, without reading results."""
        if spec.checks:
            after = (spec.join, -1)
            while page := await self._joins.members(group, after, _PAGE, failed=True):
                parts = [one for one in page if one.join == spec.join]
                if any(_stops(spec, one.position, one.state) for one in parts):
                    return Cancelled(BEFORE_IT_FAILED)
                after = (page[-1].join, page[-1].position)
                if len(parts) < _PAGE:
                    break
        return await self.finished(spec, group) if spec.is_later else None

    async def finished(self, spec: NodeSpec, group: str) -> Succeeded | None:
        """Return the outcome of a node that is skipped, because its chain was finished.

        Of several nodes before it, all were skipped or none, so a few are read.
        """
        for one in await self._joins.members(group, (spec.join, -1), _MARKED):
            if one.join == spec.join and _finishes(spec, one.result_type):
                found = await self._joins.results(spec.join, one.position - 1, 1)
                if found and found[0].result is not None:
                    return Succeeded(found[0].result)
        return None

    async def parts(self, join: str, count: int | None = None) -> list[PartResult]:
        """Return the parts of a join, by position: all, or the first ones."""
        found: list[PartResult] = []
        after = -1
        while count is None or len(found) < count:
            page = await self._joins.results(join, after, _PAGE)
            found += page
            if len(page) < _PAGE:
                break
            after = page[-1].position
        return found if count is None else found[:count]

    async def value(self, body: Body | None, depth: int = 0) -> Any:
        """Return a result; of a reference, what it refers to. None for no result.

        Raises:
            BadMessage: it cannot be read. NodeFailed: it refers to a job that has failed.
        """
        if body is None:
            return None
        reference = read_reference(without_marks(body))
        if reference is None:
            return self._codec.decode(without_marks(body))
        if depth > _MAX_REFERENCES:
            raise BadMessage("result", "too many references follow one another")
        if reference.job:
            return await self._value_of_job(reference.job, depth)
        return await self._list(reference, depth)

    async def _list(self, reference: Reference, depth: int) -> list[Any]:
        is_counted = reference.count != ALL_PARTS
        parts = await self.parts(reference.join, reference.count if is_counted else None)
        if len(parts) < reference.count:
            raise BadMessage("result", "the graph with its parts was pruned")
        return await self.listed(parts, reference.flat, reference.collect, depth)

    async def listed(
        self, parts: Sequence[PartResult], flat: bool, collect: bool, depth: int = 0
    ) -> list[Any]:
        """Return the results of parts as a list."""
        found: list[Any] = []
        for part in parts:
            if part.state is not State.SUCCEEDED:
                failed = await self.failure_of(part.job)
                if not collect:
                    raise failed
                found.append(failed)
                continue
            try:
                value = await self.value(part.result, depth + 1)
            except NodeFailed as failure:  # of what has replaced the part
                if not collect:
                    raise
                value = failure
            if flat and isinstance(value, list):
                found += _with_failures(part, value)
            else:
                found.append(value)
        return found

    async def failure_of(self, job: str) -> NodeFailed:
        """Return why a job has failed; if it was not reached, the failure before it."""
        try:
            record = await self._records.find(job)
        except UnknownJob:
            return NodeFailed("?", job, "its record was deleted")
        path = ""
        group = record.headers.get(GROUP_HEADER, "")
        if NODE_HEADER in record.headers:
            spec = read_node(record.headers[NODE_HEADER])
            path = spec.path
            if record.state is State.CANCELLED and was_not_reached(record.reason):
                causes = await find_failures(self._joins, group, spec)
                if causes:
                    return causes[0].as_error(causes[1:], group)
        error = record.reason or str(record.state)
        if record.failure is not None:
            error = record.failure.line
            if record.failure.node:
                return NodeFailed(record.failure.node, record.failure.job, error, graph=group)
        return NodeFailed(f"{path} {record.task}".strip(), job, error, graph=group)

    async def _value_of_job(self, job: str, depth: int) -> Any:
        try:
            record = await self._records.find(job)
        except UnknownJob:
            raise NodeFailed("?", job, "what replaced it was never published") from None
        if record.state is not State.SUCCEEDED:
            raise await self.failure_of(job)
        return await self.value(record.result, depth + 1)

    async def _failure(self, spec: NodeSpec, group: str, failed: NodeFailed | None) -> NodeInputs:
        """Return the failure that a handler gets; it is not needed if its part was not reached."""
        causes = await find_failures(self._joins, group, spec, scope=spec.scope)
        if not causes and failed is None:
            return NodeInputs([], Cancelled(NOT_IN_SCOPE))
        failure = causes[0].as_error(causes[1:], group) if causes else failed
        return NodeInputs([(one.keys, failure) for one in spec.inputs])

    async def _input(self, one: Input, parts: Sequence[PartResult], join: str) -> Any:
        value = await self._whole(one, parts, join)
        try:
            return pick_item(value, one.pick) if one.pick else value
        except (LookupError, TypeError):
            item = "".join(f"[{key!r}]" for key in one.pick)
            before = await self._path_of(parts[0].job) if parts else "?"
            raise BadArguments(
                f"the result of node {before} has no item {item}: it is {value!r:.80}"
            ) from None

    async def _path_of(self, job: str) -> str:
        try:
            record = await self._records.find(job)
            return read_node(record.headers[NODE_HEADER]).path
        except (UnknownJob, KeyError, BadMessage):
            return job

    async def _whole(self, one: Input, parts: Sequence[PartResult], join: str) -> Any:
        if one.form == "one":
            if not parts:
                raise BadMessage("node", f"join {join} has no part {one.first}: it was pruned")
            if parts[0].state is not State.SUCCEEDED:
                raise await self.failure_of(parts[0].job)
            return await self.value(parts[0].result)
        return await self.listed(parts, one.form == "flat", one.collect)


def _all_skipped(spec: NodeSpec, read: Sequence[Sequence[PartResult]]) -> bool:
    """Whether all results that a node gets as arguments are those of skipped nodes."""
    parts = [
        part
        for one, some in zip(spec.inputs, read, strict=True)
        if one.keys and one.keys[0] in ("args", "kwargs") and one.form == "one"
        for part in some
    ]
    values = [one for one in spec.inputs if one.keys and one.keys[0] in ("args", "kwargs")]
    return len(parts) == len(values) > 0 and all(
        part.result is not None and mark_of(part.result.content_type, "skipped") is not None
        for part in parts
    )


def _stops(spec: NodeSpec, position: int, state: State) -> bool:
    """Whether a part has failed that has to succeed."""
    return state is not State.SUCCEEDED and spec.needs(position)


def _finishes(spec: NodeSpec, content_type: str | None) -> bool:
    """Whether a result has finished a chain that contains the node."""
    chain = mark_of(content_type, "finish")
    return chain is not None and (not chain or spec.path.startswith(f"{chain}."))


def _with_failures(part: PartResult, values: list[Any]) -> list[Any]:
    """Return the values of a chunk, with its failed calls as errors."""
    positions = mark_of(part.result.content_type if part.result else None, "failed")
    if not positions:
        return values
    failed = {int(one) for one in positions.split(".") if one.isdigit()}
    return [
        NodeFailed(str(value.get("node")), part.job, str(value.get("error")))
        if at in failed and isinstance(value, dict)
        else value
        for at, value in enumerate(values)
    ]
