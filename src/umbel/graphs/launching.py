"""Graphs that a schedule publishes: a job contains the graph, and its run puts it in its place."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from msgspec.structs import replace

from umbel.backends import JobFilter, Records
from umbel.errors import BadMessage, ConfigurationError
from umbel.graphs.declaring import named_id
from umbel.graphs.publications import Publications
from umbel.messages import (
    GRAPH_TASK,
    LIVE,
    NODE_HEADER,
    BodyCodec,
    Envelope,
    Growth,
    NodeSpec,
    Publication,
    Record,
    derived_id,
    read_node,
)

TEMPLATE_ROOT = "00000000-0000-0000-0000-000000000000"
"""The root of a graph that is a template; each run gets an id of its own."""
LAUNCH_TASK = "umbel.launch"
_PAGE = 1_000
_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


async def live_roots(records: Records) -> AsyncIterator[Record]:
    """Yield the roots of all graphs that have not ended, the newest first."""
    wanted = JobFilter(states=tuple(LIVE), task=GRAPH_TASK, limit=_PAGE)
    cursor: str | None = ""
    while cursor is not None:
        page = await records.scan(wanted, after=cursor, rows=_PAGE)
        for record in page.jobs:
            yield record
        cursor = page.after


def launch_envelope(graph: Publications, codec: BodyCodec) -> Envelope:
    """Return the job that publishes a graph when it runs.

    Raises:
        ConfigurationError: the graph is too large for one job. MessageTooLarge: likewise.
    """
    if len(graph.parts) > 1:
        raise ConfigurationError("schedule: the graph is too large; schedule a task that starts it")
    (publication,) = graph.parts
    jobs = tuple(replace(one, traceparent=None, created=0.0) for one in publication.envelopes)
    content = msgspec.to_builtins(replace(publication, envelopes=jobs))
    root = jobs[0]
    return Envelope(
        id="",
        subject=LAUNCH_TASK,
        body=codec.encode({"args": [content], "kwargs": {}}, what="graph of a schedule"),
        namespace=root.namespace,
        queue=root.queue,
        kind="io",
        priority=root.priority,
        max_deaths=root.max_deaths,
        headers={NODE_HEADER: NodeSpec(kind="launch", label=_label(root)).encode()},
    )


def launched(data: Any, job: str, headers: dict[str, str]) -> Growth:
    """Return the graph in a job, with ids of its own. Raise BadMessage.

    The ids are the same if the job runs again. ``headers`` are added to the root.
    """
    try:
        publication = msgspec.convert(data["args"][0], Publication)
    except (msgspec.ValidationError, LookupError, TypeError) as error:
        raise BadMessage("data", f"not a graph: {error}") from None
    root = derived_id(job, 0, 0)
    names = {TEMPLATE_ROOT: root}
    for number, one in enumerate(publication.envelopes[1:], 1):
        names[one.id] = _new_id(one, root, number)
    renamed = _ID.sub(lambda found: _renamed(found, names), msgspec.json.encode(publication))
    fresh = msgspec.json.decode(renamed, type=Publication)
    jobs = [replace(one, body=_renamed_body(one, names)) for one in fresh.envelopes]
    jobs[0] = replace(jobs[0], headers={**jobs[0].headers, **headers})
    return Growth(replace(fresh, envelopes=tuple(jobs)), root)


def _label(root: Envelope) -> str:
    return read_node(root.headers.get(NODE_HEADER, "{}")).label


def _new_id(envelope: Envelope, root: str, number: int) -> str:
    spec = read_node(envelope.headers.get(NODE_HEADER, "{}"))
    if spec.kind == "signal":
        return named_id(root, f"signal {spec.signal}")
    if spec.kind == "timer":
        return named_id(root, f"timeout {spec.label}")
    if spec.kind in ("undo", "deadline"):
        return named_id(root, spec.kind)
    return derived_id(root, 0, number)


def _renamed(found: re.Match[bytes], names: dict[str, str]) -> bytes:
    known = names.get(found[0].decode())
    return found[0] if known is None else known.encode()


def _renamed_body(envelope: Envelope, names: dict[str, str]) -> Any:
    """Return the body; that of a node which undoes others names their jobs."""
    body = envelope.body
    return replace(body, data=_ID.sub(lambda found: _renamed(found, names), body.data))
