"""Turns compiled nodes into publications: one, or several under joins that are held meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from umbel.backends.joins import MAX_PUBLICATION
from umbel.errors import ConfigurationError
from umbel.graphs.compiled import Compiled, CompiledJoin, CompiledNode
from umbel.messages import Edge, Envelope, Growth, Join, Publication, Wait

_PORTION = 2_000
"""How many jobs and edges a publication of several has."""


class Publications(NamedTuple):
    """What to add, one after the other, and the joins to seal afterwards, in this order."""

    parts: list[Publication]
    held: list[str]


def publications(
    compiled: Compiled, envelopes: Mapping[CompiledNode, Envelope], group: str, prefix: str
) -> Publications:
    """Return the publications of a graph. No node starts before all of them were added."""
    size = len(compiled.nodes) + sum(len(join.parts) for join in _joins(compiled).values())
    if size + len(compiled.loose) <= MAX_PUBLICATION:
        return Publications([_Writer(compiled, envelopes, group, prefix).whole()], [])
    return _Writer(compiled, envelopes, group, prefix, start=f"{prefix}:start").portions()


def growth(
    compiled: Compiled,
    replacement: CompiledNode,
    envelopes: Mapping[CompiledNode, Envelope],
    group: str,
    prefix: str,
) -> Growth:
    """Return what replaces a node. Raise ConfigurationError if it is too large.

    The node itself stays a member of the group, so that it can be shown.
    """
    job = prefix.partition(":")[0]
    if job in (one.id for one in compiled.loose):
        raise ConfigurationError(
            f"replace: job {job} cannot be a part of what replaces it; leave its handle out"
        )
    compiled.loose.append(CompiledNode(job, "", is_external=True))
    found = publications(compiled, envelopes, group, prefix)
    if len(found.parts) > 1:
        raise ConfigurationError(
            f"replace: more than {MAX_PUBLICATION:,} jobs and edges in one step; let each job do"
            " more with chunks, use map, which grows in several steps, or app.batch()"
        )
    return Growth(found.parts[0], replacement.id)


def _joins(compiled: Compiled) -> dict[str, CompiledJoin]:
    return {node.join.id: node.join for node in compiled.nodes if node.join is not None}


class _Writer:
    def __init__(
        self,
        compiled: Compiled,
        envelopes: Mapping[CompiledNode, Envelope],
        group: str,
        prefix: str,
        start: str = "",
    ) -> None:
        self._compiled = compiled
        self._envelopes = envelopes
        self._group = group
        self._start = start
        """The join for which nodes wait that have nothing before them; empty if there is none."""
        self._joins = _joins(compiled)
        if compiled.loose:  # it has no waiting job: it makes them members of the group
            loose = CompiledJoin(f"{prefix}:loose", "all", compiled.loose)
            self._joins[loose.id] = loose
        self._edges: dict[CompiledNode, list[Edge]] = {}
        for join in self._joins.values():
            for position, part in enumerate(join.parts):
                self._edges.setdefault(part, []).append(Edge(part.id, join.id, position))
        self._known: set[str] = set()
        self._begin()
        if compiled.loose:
            self._mention(f"{prefix}:loose")

    def _begin(self) -> None:
        self._jobs: list[Envelope] = []
        self._new_joins: list[Join] = []
        self._new_edges: list[Edge] = []
        self._waits: list[Wait] = []

    def whole(self) -> Publication:
        """Return all in one publication."""
        for node in self._compiled.nodes:
            self._add(node)
        return self._end()

    def portions(self) -> Publications:
        """Return it in portions, with all joins held."""
        found: list[Publication] = []
        for node in self._compiled.nodes:
            if len(self._jobs) + len(self._new_edges) >= _PORTION:
                found.append(self._end())
            self._add(node)
        found.append(self._end())
        return Publications(found, [*(self._known - {self._start}), self._start])

    def _add(self, node: CompiledNode) -> None:
        self._jobs.append(self._envelopes[node])
        join = node.join.id if node.join is not None else self._start
        if join:
            self._mention(join)
            self._waits.append(Wait(node.id, join))
        for edge in self._edges.get(node, ()):
            self._mention(edge.join)
            self._new_edges.append(edge)

    def _mention(self, name: str) -> None:
        """Add a join when it is named first, with the parts that are jobs of others."""
        if name in self._known:
            return
        self._known.add(name)
        join = self._joins.get(name)
        fire = "all" if join is None else join.fire
        self._new_joins.append(Join(name, self._group, fire, held=bool(self._start)))
        if join is not None:
            outside = {part for part in join.parts if part.is_external}
            self._new_edges += [
                Edge(part.id, name, position)
                for position, part in enumerate(join.parts)
                if part in outside
            ]

    def _end(self) -> Publication:
        made = Publication(
            envelopes=tuple(self._jobs),
            joins=tuple(self._new_joins),
            edges=tuple(self._new_edges),
            waits=tuple(self._waits),
        )
        self._begin()
        return made
