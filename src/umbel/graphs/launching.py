"""Graphs that a schedule publishes: a job contains the graph, and publishes it when it runs."""

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
    GROUP_HEADER,
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
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


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
    of_root = read_node(root.headers.get(NODE_HEADER, "{}"))
    spec = NodeSpec(kind="launch", label=of_root.label, workflow=of_root.workflow)
    return Envelope(
        id="",
        subject=LAUNCH_TASK,
        body=codec.encode({"args": [content], "kwargs": {}}, what="graph of a schedule"),
        namespace=root.namespace,
        queue=root.queue,
        kind="io",
        priority=root.priority,
        max_deaths=root.max_deaths,
        headers={NODE_HEADER: spec.encode()},
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
    jobs = [_renamed_envelope(one, names) for one in publication.envelopes]
    jobs[0] = replace(jobs[0], headers={**jobs[0].headers, **headers})
    fresh = Publication(
        envelopes=tuple(jobs),
        joins=tuple(
            replace(one, id=_renamed(one.id, names), group=_renamed(one.group, names))
            for one in publication.joins
        ),
        edges=tuple(
            replace(one, job=_renamed(one.job, names), join=_renamed(one.join, names))
            for one in publication.edges
        ),
        waits=tuple(
            replace(one, job=_renamed(one.job, names), join=_renamed(one.join, names))
            for one in publication.waits
        ),
    )
    return Growth(fresh, root)


def _new_id(envelope: Envelope, root: str, number: int) -> str:
    spec = read_node(envelope.headers.get(NODE_HEADER, "{}"))
    if spec.kind == "signal":
        return named_id(root, f"signal {spec.signal}")
    if spec.kind == "timer":
        return named_id(root, f"timeout {spec.label}")
    if spec.kind in ("undo", "deadline"):
        return named_id(root, spec.kind)
    return derived_id(root, 0, number)


def _renamed(text: str, names: dict[str, str]) -> str:
    """Return a text with the new ids."""
    return _ID.sub(lambda found: names.get(found[0], found[0]), text)


def _renamed_envelope(envelope: Envelope, names: dict[str, str]) -> Envelope:
    """Return a message with the new ids. What users give, such as arguments, is left as it is."""
    headers, body = dict(envelope.headers), envelope.body
    spec = read_node(headers[NODE_HEADER])
    spec = replace(spec, join=_renamed(spec.join, names), target=_renamed(spec.target, names))
    headers[NODE_HEADER] = spec.encode()
    headers[GROUP_HEADER] = _renamed(headers[GROUP_HEADER], names)
    if spec.kind == "undo":  # it names the jobs that it undoes; arguments of undos are encoded
        body = replace(body, data=_renamed(body.data.decode("latin-1"), names).encode("latin-1"))
    return replace(envelope, id=names[envelope.id], headers=headers, body=body)
