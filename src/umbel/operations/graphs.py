"""What operators do with graphs: list, show, retry, cancel, resolve."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import msgspec

from umbel.backends import UNCHANGED, Changes, JobFilter, Put, Roles
from umbel.errors import ConfigurationError, NotAllowed, Unavailable, UnknownJob
from umbel.graphs import (
    AGAIN,
    Graph,
    cancel_graph,
    count_run,
    give_signal,
    live_roots,
    read_graph,
)
from umbel.messages import (
    GRAPH_TASK,
    NODE_HEADER,
    TERMINAL,
    BodyCodec,
    Record,
    State,
    Succeeded,
    read_node,
)
from umbel.messages.graphs import WAITS_FOR_TIME
from umbel.messages.nodes import with_mark
from umbel.operations.graph_documents import is_run_of
from umbel.operations.graph_repair import (
    failed_jobs,
    had_place,
    jobs_from,
    refuse_undoing,
    undone_nodes,
    with_consequences,
)
from umbel.operations.graph_values import NodeInput, read_inputs, read_result

_PAGE = 200
_MAX_READ = 2_000
"""How many roots are read for a page."""
_MAX_QUEUE_LENGTH = 255
_RESOLVING = "umbel.resolving."
"""The beginning of a queue that no worker serves; its own queue follows. A node is in it between
the steps of ``resolve``."""
_MAX_ENDED = 10_000
"""How many runs that have ended are counted."""
_RETRY_SECONDS = 30.0
"""How long others may not retry a graph if the process that does so dies."""
_MAX_NAMED = 2_000
"""How many jobs are named in one step. Those that wait for them are reopened with them."""


class RetriedGraph(msgspec.Struct, frozen=True, kw_only=True):
    """What runs again."""

    graph: str
    nodes: tuple[str, ...]
    """The paths of the nodes that were named or follow them."""
    jobs: int
    """How many jobs are live again, with those that wait for them."""


class WorkflowVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a workflow, with its runs."""

    workflow: str
    version: str
    live: int
    """How many runs have not ended."""
    ended: int
    """How many of the newest runs have ended."""
    is_declared: bool = False
    """Whether the application declares it now."""


class FoundGraphs(msgspec.Struct, frozen=True):
    """A page of roots of graphs."""

    roots: list[Record]
    after: str | None
    """Where the next page begins; None if there is none."""


class GraphOperations:
    """The operations on graphs."""

    def __init__(self, roles: Roles, codec: BodyCodec) -> None:
        self._roles = roles
        self._codec = codec

    async def roots(self, states: Sequence[State] = (), limit: int = 50) -> list[Record]:
        """Return the roots of graphs: live ones first, then the last that have ended."""
        wanted = JobFilter(states=tuple(states), task=GRAPH_TASK, limit=limit)
        return await self._roles.records.search(wanted)

    async def search(
        self, states: Sequence[State] = (), *, workflow: str = "", after: str = "", limit: int = 50
    ) -> FoundGraphs:
        """Return a page of roots: live ones first, then the last that have ended.

        With ``workflow``, only its runs, and a page may have more or fewer than ``limit``.
        """
        found: list[Record] = []
        size = _PAGE if workflow else limit
        wanted = JobFilter(states=tuple(states), task=GRAPH_TASK, limit=size)
        cursor: str | None = after
        read = 0
        while cursor is not None and len(found) < limit and read < _MAX_READ:
            page = await self._roles.records.scan(wanted, after=cursor, rows=_MAX_READ)
            found += [one for one in page.jobs if not workflow or is_run_of(one, workflow)]
            cursor, read = page.after, read + max(page.read, len(page.jobs), 1)
        return FoundGraphs(found, cursor)

    async def inputs(self, record: Record) -> list[NodeInput]:
        """Return what a node gets from the nodes before it, as far as they have ended."""
        return await read_inputs(self._roles, self._codec, record)

    async def result(self, record: Record) -> Any:
        """Return the result of a node or graph, also if it consists of results of others."""
        return await read_result(self._roles, self._codec, record)

    async def workflow_versions(
        self, limit: int | None = None, declared: Mapping[str, str] = MappingProxyType({})
    ) -> list[WorkflowVersion]:
        """Return the versions of workflows, with their runs.

        Counts are of the newest ``limit`` graphs. Without it, they are of all graphs that have not
        ended, and of the last 10,000 that have. ``declared`` are the present versions by the names
        of workflows. They are listed first.
        """
        live: Counter[tuple[str, str]] = Counter()
        ended: Counter[tuple[str, str]] = Counter()
        for record in await self._counted(limit):
            spec = read_node(record.headers.get(NODE_HEADER, "{}"))
            if spec.workflow:
                (ended if record.state.finished else live)[spec.workflow, spec.version] += 1
        return [
            WorkflowVersion(
                workflow=key[0],
                version=key[1],
                live=live[key],
                ended=ended[key],
                is_declared=key in declared.items(),
            )
            for key in sorted(
                {*live, *ended, *declared.items()},
                key=lambda key: (key[0], key not in declared.items(), key[1]),
            )
        ]

    async def _counted(self, limit: int | None) -> list[Record]:
        if limit is not None:
            return await self.roots(limit=limit)
        live = [record async for record in live_roots(self._roles.records)]
        return [*live, *await self.roots(states=tuple(TERMINAL), limit=_MAX_ENDED)]

    async def earlier_versions(self, declared: Mapping[str, str]) -> list[WorkflowVersion]:
        """Return the versions with runs that have not ended, except the declared ones, by name."""
        found = await self.workflow_versions(declared=declared)
        return [one for one in found if one.live and not one.is_declared]

    async def signal(self, graph: str, name: str, value: Any, sender: str) -> None:
        """Give a signal of a workflow its value. Raise NotAllowed, UnknownJob, BadArguments."""
        await give_signal(self._roles, self._codec, graph, name, value, sender)

    async def show(self, graph: str) -> Graph:
        """Return a graph with its nodes. Raise UnknownJob, NotAllowed."""
        return await read_graph(self._roles.joins, self._roles.records, graph)

    async def cancel(self, graph: str, reason: str) -> bool:
        """Cancel all nodes of a graph. Return False if it has ended."""
        await self.show(graph)
        return await cancel_graph(self._roles, graph, reason)

    async def retry(
        self,
        graph_id: str,
        *,
        node: str | None = None,
        start: str | None = None,
        arguments: Any = None,
    ) -> RetriedGraph:
        """Continue a graph that has failed: failed nodes run again, succeeded ones do not.

        With ``node``, only this failed node runs again. With ``start``, this node and all that
        follow it run again, also those that have succeeded. ``arguments`` replace those of the
        node: a list, or a dict with ``args`` and ``kwargs``.

        Nodes of a workflow that were undone run again, with all that follow them.

        Raises:
            NotAllowed: a node or an undo runs, nothing has failed, the node was replaced when it
            ran, or another operator retries it now.
        """
        async with self._alone(graph_id):
            return await self._retry(graph_id, node, start, arguments)

    async def _retry(
        self, graph_id: str, node: str | None, start: str | None, arguments: Any
    ) -> RetriedGraph:
        graph = await self.show(graph_id)
        refuse_undoing(graph)
        named = failed_jobs(graph, node) if start is None else jobs_from(graph, start)
        named = with_consequences(graph, named)
        changes = UNCHANGED
        if arguments is not None:
            if node is None and start is None:
                raise NotAllowed("arguments: name the node that they are for")
            changes = Changes(body=self._body(arguments))
        first = [graph.find(name).job for name in (node, start) if name is not None]
        undone = [one.job for one in undone_nodes(graph)]
        if arguments is not None and {*first} & {one.job for one in graph.after(undone)}:
            raise NotAllowed(
                f"arguments: node {node or start} follows nodes that were undone, which run again"
                " first; retry without arguments, or start a new run"
            )
        again = await self._reopen_all(graph, first, named, changes)
        by_job = {one.job: one for one in graph.nodes}
        paths = tuple(by_job[job].path for job in named if job in by_job and by_job[job].runs_task)
        return RetriedGraph(graph=graph_id, nodes=paths, jobs=len(again))

    async def retry_jobs(self, graph_id: str, jobs: Sequence[str], changes: Changes) -> list[str]:
        """Continue a graph with these failed nodes; return those that are live again.

        They get the ``changes``. What acts on their failures runs again, too. Raise NotAllowed.
        """
        graph: Graph | None = None
        named: Sequence[str] = jobs
        async with self._alone(graph_id):
            with suppress(UnknownJob):  # the root was deleted
                graph = await self.show(graph_id)
                done = {one.job for one in graph.nodes if one.state is State.SUCCEEDED}
                jobs = [job for job in jobs if job not in done]  # another retry may have run it
                named = with_consequences(graph, [*jobs])
            again = {*(await self._reopen_all(graph, jobs, named, changes))}
        return [job for job in jobs if job in again]

    @asynccontextmanager
    async def _alone(self, graph: str) -> AsyncIterator[None]:
        """Keep other operators from changing this graph meanwhile. Raise NotAllowed if one does.

        Otherwise they could name nodes that had failed when they read the graph, and that have run
        again since, and succeeded.
        """
        key = f"retries/{graph}"
        put = Put(key, seconds=_RETRY_SECONDS)
        revision = await self._roles.coordination.commit({key: 0}, [put])
        if revision is None:
            raise NotAllowed(f"graph {graph} is being retried by another operator: try again")
        try:
            yield
        finally:
            # Only its own entry: if this took longer than the lease, another operator has one.
            await self._roles.coordination.commit({key: revision}, deletes=[key])

    async def resolve(self, graph_id: str, name: str, result: Any) -> bool:
        """Let a node count as succeeded, with this result; the graph continues.

        It may have failed, wait, or be blocked. Return False if it runs now.

        Raises:
            NotAllowed: it has succeeded, or there is no such node.
        """
        async with self._alone(graph_id):
            return await self._resolve(graph_id, name, result)

    async def _resolve(self, graph_id: str, name: str, result: Any) -> bool:
        graph = await self.show(graph_id)
        node = graph.find(name)
        if node.state in ("skipped", State.SUCCEEDED):
            raise NotAllowed(f"node {node.path} has succeeded; it needs no result")
        body = self._codec.encode(result, what=f"result of node {node.path}", name="result")
        queue = (await self._roles.records.find(node.job)).queue
        if len(_RESOLVING + queue) > _MAX_QUEUE_LENGTH:
            raise NotAllowed(f"queue {queue!r:.80}: too long a name for a node to be resolved")
        if node.has_ended or queue.startswith(_RESOLVING):
            if node.has_ended:  # otherwise an earlier call has checked it
                refuse_undoing(graph)
            again = [job for job in with_consequences(graph, [node.job]) if job != node.job]
            # No worker takes it from this queue before it is resolved. If this process dies, it
            # stays there until ``resolve`` is repeated.
            queue = queue.removeprefix(_RESOLVING)
            await self._reopen(graph, [node.job], Changes(queue=_RESOLVING + queue))
            await self._reopen(graph, again)
            body = with_mark(body, "resolved", quote(queue, safe=""))
        resolved = await self._roles.joins.resolve(node.job, Succeeded(body))
        if resolved and node.kind == "place":
            await count_run(self._roles, graph.workflow, graph.id)
        await self._advance()
        return resolved

    async def _reopen_all(
        self, graph: Graph | None, first: Sequence[str], named: Sequence[str], changes: Changes
    ) -> list[str]:
        """Reopen jobs; the first ones get the changes, so they are reopened by themselves."""
        changed = [] if changes is UNCHANGED else [*first]
        again = await self._reopen(graph, changed, changes)
        others = {*named} - {*changed}
        return [*again, *await self._reopen(graph, [job for job in named if job in others])]

    async def _reopen(
        self, graph: Graph | None, jobs: Sequence[str], changes: Changes = UNCHANGED
    ) -> list[str]:
        """Reopen jobs, each not before those that it waits for, in steps of a bounded size.

        If this process dies between two steps, another retry does the rest.
        """
        own = await self._changes(graph, {*jobs}) if graph and changes is UNCHANGED else {}
        ordered = graph.in_order(jobs) if graph else jobs
        again: list[str] = []
        # All jobs of a step get the same changes.
        for given, some in groupby(ordered, lambda job: own.get(job, changes)):
            step = [*some]
            for at in range(0, len(step), _MAX_NAMED):
                try:
                    again += await self._roles.joins.reopen(step[at : at + _MAX_NAMED], given)
                except ConfigurationError as error:
                    raise NotAllowed(f"{error}; start a new graph instead") from None
        if graph is not None and again and had_place(graph, again):
            await count_run(self._roles, graph.workflow, graph.id)
        return again

    async def _changes(self, graph: Graph, jobs: set[str]) -> dict[str, Changes]:
        """Return what to change in nodes that run again.

        Nodes that were resolved get their queues back. A node that waits for time to pass needs to
        know that it is retried, if nothing before it runs again.
        """
        by_job = {node.job: node for node in graph.nodes}
        found: dict[str, Changes] = {}
        for node in graph.nodes:
            if node.job not in jobs:
                continue
            before = [by_job[job] for job in node.before if job in by_job]
            if node.kind in WAITS_FOR_TIME and all(
                one.state in ("skipped", State.SUCCEEDED) and one.job not in jobs for one in before
            ):
                record = await self._roles.records.find(node.job)
                data = {"args": self._codec.decode(record.body)["args"], "kwargs": {AGAIN: True}}
                found[node.job] = Changes(body=self._body(data))
            elif node.resolved_in:
                found[node.job] = Changes(queue=node.resolved_in)
        return found

    def _body(self, arguments: Any) -> Any:
        data = arguments
        if isinstance(arguments, list):
            data = {"args": arguments, "kwargs": {}}
        if not isinstance(data, dict) or not data.keys() <= {"args", "kwargs"}:
            raise NotAllowed('arguments: give a list, or {"args": [...], "kwargs": {...}}')
        return self._codec.encode({"args": [], "kwargs": {}, **data}, what="arguments")

    async def _advance(self) -> None:
        try:
            while await self._roles.joins.advance():
                pass
        except Unavailable:  # upkeep does what is left
            return
