"""Gives signals of workflows their values."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import quote

import anyio

from umbel.backends import Roles
from umbel.errors import BadArguments, NotAllowed, UmbelError, UnknownJob
from umbel.graphs.declaring import named_id
from umbel.graphs.view import read_graph
from umbel.messages import NODE_HEADER, BodyCodec, Record, State, Succeeded, read_node
from umbel.messages.nodes import mark_of, with_mark

_TYPES: dict[str, type | tuple[type, ...]] = {
    "bool": bool,
    "int": int,
    "float": (int, float),
    "str": str,
    "list": (list, tuple),
    "dict": dict,
}
_MAX_SENDER_LETTERS = 200
_MAX_TRIES = 50
_RETRY_SECONDS = 0.02


async def give_signal(
    roles: Roles, codec: BodyCodec, graph: str, name: str, value: Any, sender: str = ""
) -> None:
    """Give a signal its value. The first value counts, also if it comes early.

    Raises:
        UnknownJob: there is no such workflow, or it has no such signal. NotAllowed: the signal has
        a value, was not given in time, or the workflow has ended. BadArguments: its type is wrong.
    """
    record = await _find(roles, graph, name)
    accepts = read_node(record.headers[NODE_HEADER]).accepts
    wanted = _TYPES.get(accepts)
    is_bool_for_number = isinstance(value, bool) and accepts in ("int", "float")
    if wanted is not None and (not isinstance(value, wanted) or is_bool_for_number):
        raise BadArguments(f"signal {name}: {value!r:.80} is not {accepts}")
    body = codec.encode(value, what=f"signal {name}")
    if sender:
        body = with_mark(body, "sender", quote(sender[:_MAX_SENDER_LETTERS], safe=""))
    for _ in range(_MAX_TRIES):
        if await roles.joins.resolve(record.id, Succeeded(body)):
            break
        record = await roles.records.find(record.id)
        if record.state is not State.RUNNING:
            raise NotAllowed(_why_ended(record, name))
        await anyio.sleep(_RETRY_SECONDS)  # a worker looks at it, because it was retried
    else:
        raise NotAllowed(_why_ended(record, name))
    with suppress(UmbelError):  # the timer has no effect any more, and upkeep advances, too
        await roles.control.cancel([named_id(graph, f"timeout {name}")], f"signal {name} was given")
        while await roles.joins.advance():  # of nodes that cannot run, because another has failed
            pass


async def _find(roles: Roles, graph: str, name: str) -> Record:
    """Return the record of a signal. Raise UnknownJob, with the names that exist."""
    await roles.records.find(graph)
    try:
        return await roles.records.find(named_id(graph, f"signal {name}"))
    except UnknownJob:
        nodes = (await read_graph(roles.joins, roles.records, graph)).nodes
        names = [node.task.removeprefix("signal ") for node in nodes if node.kind == "signal"]
        known = f"its signals: {', '.join(names)}" if names else "it has no signals"
        raise UnknownJob(f"graph {graph} has no signal {name!r:.80}; {known}") from None


def _why_ended(record: Record, name: str) -> str:
    given = record.result is not None and mark_of(record.result.content_type, "sender")
    if not record.state.finished:
        return f"signal {name}: a worker looks at it now; give it again"
    if record.state.value == "succeeded":
        return f"signal {name} has a value already" + (f", given by {given}" if given else "")
    return f"signal {name} has ended: {record.reason or record.state}"
