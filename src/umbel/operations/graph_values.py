"""The values at the edges of a graph: what a node gets from others, and what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from umbel.backends import Roles
from umbel.errors import BadMessage, NodeFailed
from umbel.graphs import ResultReader
from umbel.messages import NODE_HEADER, BodyCodec, Input, PartResult, Record, State, read_node
from umbel.messages.nodes import read_reference, without_marks

_MAX_PARTS = 100
"""Of a list with more results, only the length is told."""


class NodeInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a node gets as one of its arguments."""

    keys: tuple[str | int, ...]
    """The keys that lead to it: ``("args", 0)``."""
    jobs: tuple[str, ...]
    """The first nodes that it comes from."""
    count: int
    """From how many nodes it comes, as far as they were read."""
    is_known: bool
    """Whether the nodes have ended, and their results are few enough to be shown."""
    value: Any = None


async def read_inputs(roles: Roles, codec: BodyCodec, record: Record) -> list[NodeInput]:
    """Return what a node gets from the nodes before it."""
    spec = read_node(record.headers.get(NODE_HEADER, "{}"))
    wanted = [one for one in spec.inputs if one.keys and one.form != "failure"]
    if not spec.join or not wanted:
        return []
    parts = [*await roles.joins.results(spec.join, -1, _MAX_PARTS + 1)]
    reader = ResultReader(roles.joins, roles.records, codec)
    return [await _read(reader, one, parts) for one in wanted]


async def _read(reader: ResultReader, one: Input, parts: Sequence[PartResult]) -> NodeInput:
    end = one.first + one.count if one.count >= 0 else None
    own = parts[one.first : end]
    found = NodeInput(
        keys=one.keys,
        jobs=tuple(part.job for part in own[:3]),
        count=len(own),
        is_known=False,
    )
    is_whole = len(own) == one.count or (one.count < 0 and len(parts) <= _MAX_PARTS)
    has_ended = all(part.state is State.SUCCEEDED for part in own)
    if not is_whole or not has_ended or any(_is_long(part) for part in own):
        return found
    try:
        if one.form == "one":
            value = await reader.value(own[0].result)
        else:
            value = await reader.listed(own, one.form == "flat", one.collect)
    except (BadMessage, NodeFailed):
        return found
    for key in one.pick:
        try:
            value = value[key]
        except (LookupError, TypeError):
            return found
    return msgspec.structs.replace(found, is_known=True, value=value)


def _is_long(part: PartResult) -> bool:
    reference = read_reference(without_marks(part.result)) if part.result is not None else None
    return reference is not None and not 0 <= reference.count <= _MAX_PARTS


async def read_result(roles: Roles, codec: BodyCodec, record: Record) -> Any:
    """Return the result of a node; of a long list, only how many results it has."""
    if record.result is None:
        return None
    reference = read_reference(without_marks(record.result))
    if reference is not None and not 0 <= reference.count <= _MAX_PARTS:
        return {"results": reference.count} if reference.count > 0 else {"results": "many"}
    return await ResultReader(roles.joins, roles.records, codec).value(record.result)
