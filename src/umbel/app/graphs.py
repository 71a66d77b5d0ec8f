"""The client's part of graphs: publishes canvases, and cancels all nodes of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import anyio
from msgspec.structs import replace

from umbel.backends import Joins, Roles
from umbel.backends.joins import MAX_PUBLICATION
from umbel.clock import Clock
from umbel.errors import ConfigurationError, DuplicateJob, UmbelError, Unavailable
from umbel.graphs import Compiler, grow, named_id, publications
from umbel.graphs.publications import Publications
from umbel.messages import (
    GRAPH_TASK,
    GROUP_HEADER,
    NODE_HEADER,
    REFERENCE,
    Envelope,
    Growth,
    Publication,
    Record,
    State,
    derived_id,
    fresh_id,
    read_node,
)
from umbel.messages.nodes import read_reference
from umbel.publisher import Builder
from umbel.publisher.building import normalize_id
from umbel.tasks import Run, Unique, current_step, running
from umbel.tasks.composing import CanvasMethods, Composable
from umbel.tasks.options import CallOptions

_RETRY_SECONDS = 0.1
_PAGE = 1_000
_QUEUE = "default"


class BuiltGraph(NamedTuple):
    """A graph that is ready to be published."""

    root: str
    publications: Publications
    returns: Any
    unique: Unique | None
    connection: Any

    @property
    def envelopes(self) -> list[Envelope]:
        """The messages of all nodes."""
        return [one for part in self.publications.parts for one in part.envelopes]


def build_graph(
    canvas: Composable[Any], first: Sequence[Any], builder: Builder, clock: Clock
) -> BuiltGraph:
    """Return what is to be published of a canvas. Raise what ``delay`` raises."""
    options: CallOptions = canvas.call_options  # type: ignore[attr-defined]
    if isinstance(canvas, CanvasMethods) and isinstance(options.expires, int | float):
        # One moment for all nodes, also for those that begin later.
        moment = datetime.fromtimestamp(clock.now(), UTC) + timedelta(seconds=options.expires)
        canvas = canvas.options(expires=moment)
    place = current_step.get()
    if options.id is not None:
        root = normalize_id(options.id)
    else:
        root = fresh_id() if place is None else place.next_id()
    compiler = Compiler(
        root,
        lambda number: derived_id(root, 0, number),
        named=lambda name: named_id(root, name),
    )
    compiled = compiler.graph(canvas, first, root)
    queue = compiled.nodes[0].defaults.queue or _QUEUE
    envelopes = builder.build_nodes(compiled.nodes, root, queue)
    unique = options.unique
    if unique is not None and not isinstance(unique, Unique):
        unique = Unique(unique)
    if unique is not None:
        if unique.on_conflict == "replace":
            raise ConfigurationError(
                'on_conflict="replace": not for a canvas; cancel the graph that has the key first'
            )
        first_node = compiled.nodes[0]
        envelopes[first_node] = replace(envelopes[first_node], unique=unique.key)
    found = publications(compiled, envelopes, root, root)
    return BuiltGraph(root, found, compiled.nodes[0].returns, unique, options.connection)


def build_growth(canvas: Composable[Any], run: Run, builder: Builder) -> Growth:
    """Return the jobs of a canvas that replaces a running job."""
    headers = run.job.headers
    spec = read_node(headers[NODE_HEADER]) if NODE_HEADER in headers else None
    group = headers.get(GROUP_HEADER, "")
    job, fence = run.lease.job, run.lease.fence
    task, queue = run.job.task, run.job.queue
    return grow(canvas, job, fence, task, spec, group, queue, builder.build_nodes)


async def publish_graph(roles: Roles, graph: BuiltGraph) -> str:
    """Publish a graph. Return the id of its root, or of the graph that has its unique key.

    Raises:
        DuplicateJob: another graph has the unique key. Unavailable: the store did not answer; then
        all nodes were published, or none of them will start.
    """
    parts = [*graph.publications.parts]
    held = [*graph.publications.held]
    if graph.unique is not None:
        alone, parts, held = _root_first(parts, held)
        await roles.joins.add(alone)
        holder = await _holder(roles, graph.root)
        if holder is not None:
            await roles.joins.drop(graph.root)
            if graph.unique.on_conflict == "raise":
                raise DuplicateJob(graph.unique.key, holder)
            return holder
    for part in parts:
        await roles.joins.add(part)
    await _seal(roles.joins, held)
    if len(graph.publications.parts) > 1:
        with suppress(UmbelError):  # a worker's upkeep does what is left
            while await roles.joins.advance():
                pass
    return graph.root


async def _seal(joins: Joins, held: Sequence[str]) -> None:
    """Seal joins; the last one lets the first nodes start."""
    for at in range(0, len(held), _PAGE):
        await joins.seal(held[at : at + _PAGE])


def _root_first(
    parts: list[Publication], held: list[str]
) -> tuple[Publication, list[Publication], list[str]]:
    """Separate the root, so that nothing is published if its unique key is taken."""
    first = parts[0]
    root = first.envelopes[0]
    waits = tuple(wait for wait in first.waits if wait.job == root.id)
    names = {wait.join for wait in waits}
    joins = tuple(replace(join, held=True) for join in first.joins if join.id in names)
    alone = Publication(envelopes=(root,), joins=joins, waits=waits)
    rest = replace(
        first,
        envelopes=first.envelopes[1:],
        joins=tuple(join for join in first.joins if join.id not in names),
        waits=tuple(wait for wait in first.waits if wait.job != root.id),
    )
    return alone, [rest, *parts[1:]], [*(names - {*held}), *held]


async def _holder(roles: Roles, root: str) -> str | None:
    """Return the job that has the unique key of a root; None if the root has it."""
    record = await roles.records.find(root)
    if record.state is State.CANCELLED and "unique key" in record.reason:
        return record.reason.rpartition(" ")[2]
    return None


def is_graph(task: str) -> bool:
    """Whether this is the task of the root of a graph."""
    return task == GRAPH_TASK


def check_place(canvas: Composable[Any]) -> None:
    """Raise ConfigurationError if a canvas cannot be published by the job that runs here."""
    run = running.get()
    if run is None or run.task is None or current_step.get() is not None:
        return
    if run.task.declared.publishing == "held":
        raise ConfigurationError(
            f'{run.task.name} has publishing="held": return current.replace(canvas), or publish'
            " the canvas in a step"
        )


def check_transaction(graph: BuiltGraph) -> None:
    """Raise ConfigurationError if a graph cannot be published in a transaction of the caller."""
    if graph.unique is not None:
        raise ConfigurationError(
            "unique: not for a canvas in a transaction, where nothing can be taken back if the key"
            " is taken; give the key to its first task, or publish the canvas without connection"
        )
    if len(graph.publications.parts) > 1:
        raise ConfigurationError(
            f"connection: at most {MAX_PUBLICATION:,} jobs and edges fit into a transaction;"
            " publish one job in it that returns current.replace(...), or let each job do more,"
            " with chunks"
        )


async def publish_until(roles: Roles, graph: BuiltGraph, clock: Clock, deadline: float) -> str:
    """``publish_graph``, repeated while the store does not answer: this is safe."""
    until = clock.monotonic() + deadline
    while True:
        try:
            return await publish_graph(roles, graph)
        except Unavailable:
            if clock.monotonic() + _RETRY_SECONDS >= until:
                raise
            await anyio.sleep(_RETRY_SECONDS)


def replacement_of(record: Record) -> str:
    """Return the job that has replaced a job; an empty text if there is none."""
    if record.result is None or not record.result.content_type.startswith(REFERENCE):
        return ""
    reference = read_reference(record.result)
    return reference.job if reference is not None else ""
