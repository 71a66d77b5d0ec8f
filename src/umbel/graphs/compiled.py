"""The nodes and joins of a compiled canvas, and the values between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from umbel.errors import ConfigurationError
from umbel.messages import Fire, Input, NodeSpec, Policy
from umbel.messages.graphs import SHOWN_KINDS
from umbel.messages.nodes import Inside, NodeKind
from umbel.tasks.options import CallOptions
from umbel.tasks.task import Signature

NO_OPTIONS = CallOptions()
ArgumentKeys = tuple[str | int, ...]
"""The keys that lead to a value in the arguments of a node, as in ``("args", 0)``."""


@dataclass(eq=False, slots=True)
class CompiledNode:
    """A node: a job of the graph, or a job that exists already and is a part of it."""

    id: str
    path: str
    kind: NodeKind = ""
    call: Signature[Any] | None = None
    """The call, with None for arguments that are results. Of a map: the call for an item."""
    is_external: bool = False
    reads: list[tuple[Output, ArgumentKeys | None]] = field(default_factory=list)
    """What it waits for, and where that goes in its arguments; None if it is not an argument."""
    parts: list[CompiledNode] = field(default_factory=list)
    """The nodes that it waits for, by position in its join."""
    join: CompiledJoin | None = None
    fire: Fire = "success"
    inputs: list[Input] = field(default_factory=list)
    checks: bool = False
    free_from: int = -1
    chain: str | None = None
    handler: bool = False
    is_later: bool = False
    """Whether a node before it may finish a chain that contains it."""
    defaults: CallOptions = NO_OPTIONS
    """Options of the canvases that contain it."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of its ``NodeSpec``."""
    arguments: list[Any] = field(default_factory=list)
    """Of a node that runs no task: what is in its message."""
    after: tuple[Any, ...] = ()
    """The canvases that it waits for without using their results."""
    undos: list[tuple[CompiledNode, Signature[Any], list[str]]] = field(default_factory=list)
    """Of the node that undoes others: these, their undos, and the jobs whose undos come first."""
    is_aside: bool = False
    """Whether it belongs to a branch or a handler, so that the result does not depend on it."""
    parameters: list[tuple[ArgumentKeys, str]] = field(default_factory=list)
    """Where parameters of a workflow go that is only checked."""
    inside: Inside = ()
    """The sub-workflows and replaced nodes that contain it."""
    returns: Any = Any

    def spec(self) -> NodeSpec:
        """Return what its message says about it as a node."""
        fields: dict[str, Any] = {"join": self.join.id if self.join is not None else ""}
        return NodeSpec(
            path=self.path,
            kind=self.kind,
            inputs=tuple(self.inputs),
            checks=self.checks,
            free_from=self.free_from,
            chain=self.chain,
            handler=self.handler,
            is_later=self.is_later,
            inside=self.inside,
            **fields | self.extra,
        )


@dataclass(eq=False, slots=True)
class CompiledJoin:
    """A join, with its parts by position."""

    id: str
    fire: Fire
    parts: list[CompiledNode]


@dataclass(eq=False, slots=True)
class Output:
    """The value of a compiled canvas: of one node, or the list of several."""

    nodes: list[CompiledNode] = field(default_factory=list)
    is_list: bool = False
    is_flat: bool = False
    """Whether the nodes have lists, which become one list."""
    collect: bool = False
    """Whether failures are items of the list."""
    is_failure: bool = False
    """Whether the value is why the nodes failed."""
    is_no_value: bool = False
    """Whether it is only waited for."""
    of: Output | None = None
    """The output that is only waited for."""
    pick: tuple[str | int, ...] = ()
    """The keys of the item that is wanted; empty for the whole value."""
    given: tuple[Any, ...] = ()
    """Arguments that the caller gives to the tasks at the beginning."""
    also: list[CompiledNode] = field(default_factory=list)
    """Nodes that must have succeeded before, and are no part of the value."""
    is_gated: bool = False
    """Of a signal: whether it waits for others. It may be given before they have ended."""
    earlier: list[Output] = field(default_factory=list)
    """Of a signal: what must have succeeded before, besides ``also``."""
    lanes: list[CompiledNode] = field(default_factory=list)
    """Nodes that must have ended before, in whatever way: see ``limit`` of a group."""
    returns: Any = Any
    joins: dict[tuple[Fire, bool], CompiledJoin] = field(default_factory=dict)
    """The joins for nodes that wait for nothing else."""

    @property
    def fire(self) -> Fire:
        """When a join for this output fires."""
        if self.is_failure:
            return "failure"
        if self.of is not None and not self.lanes:
            return self.of.fire
        return "all" if (self.is_list and self.collect) or self.lanes else "success"

    @property
    def is_one(self) -> bool:
        """Whether it is the result of one node."""
        return not (self.is_list or self.also or self.is_gated) and len(self.nodes) == 1

    @property
    def is_short(self) -> bool:
        """Whether few nodes have to end before it is known."""
        return len(self.nodes) + len(self.waited_for) <= 2

    @property
    def required(self) -> list[CompiledNode]:
        """The nodes that must have succeeded before a node that waits for it can run."""
        own = [] if self.is_list and self.collect else self.nodes
        before = (node for one in self._before for node in one.required)
        return [*own, *self.also, *before]

    @property
    def optional(self) -> list[CompiledNode]:
        """The nodes that must have ended before, in whatever way."""
        own = self.nodes if self.is_list and self.collect else []
        return [*own, *(node for one in self._before for node in one.optional)]

    @property
    def _before(self) -> list[Output]:
        return self.earlier if self.of is None else [*self.earlier, self.of]

    def input(self, first: int, keys: ArgumentKeys) -> Input:
        """Return how a node reads it whose join has the nodes from this position on."""
        count = len(self.nodes)
        if self.is_failure:
            return Input(keys, "failure", first, count)
        if not self.is_list:
            return Input(keys, "one", first, pick=self.pick)
        form: Any = "flat" if self.is_flat else "list"
        return Input(keys, form, first, count, self.collect, self.pick)

    def only_waited_for(self) -> Output:
        """Return this output without its value."""
        return Output(is_no_value=True, of=self, lanes=self.lanes)

    @property
    def waited_for(self) -> list[CompiledNode]:
        """The nodes that must have ended before, besides those with the value."""
        before = (node for one in self._before for node in (*one.nodes, *one.waited_for))
        return [*self.also, *before]


class Compiled:
    """The nodes of a graph, or of a canvas that replaces a node."""

    def __init__(self, nodes: list[CompiledNode], loose: list[CompiledNode]) -> None:
        self.nodes = nodes
        """All jobs to publish. Each comes after those that it waits for, the root first."""
        self.loose = loose
        """Nodes for which no other waits: branches and handlers."""

    @property
    def tasks(self) -> int:
        """How many nodes its progress counts when it starts."""
        return sum(node.kind in SHOWN_KINDS and not node.handler for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Calls of a task that one job makes."""

    call: Signature[Any]
    calls: list[tuple[Any, ...]]
    errors: Policy
    handlers: tuple[()] = ()


def in_order(nodes: Sequence[CompiledNode]) -> list[CompiledNode]:
    """Return the nodes, each after those that it waits for. Raise ConfigurationError on a cycle."""
    waiting = {node: len(node.parts) for node in nodes}
    after: dict[CompiledNode, list[CompiledNode]] = {}
    for node in nodes:
        for part in node.parts:
            after.setdefault(part, []).append(node)
    ready = [node for node in nodes if not node.parts]
    for node in ready:  # it grows meanwhile
        for following in after.get(node, ()):
            waiting[following] -= 1
            if waiting[following] == 0:
                ready.append(following)
    if len(ready) < len(nodes):
        stuck = [node for node in nodes if waiting[node] > 0]
        before = next((part for part in stuck[0].parts if waiting[part] > 0), stuck[0])
        raise ConfigurationError(
            f"canvas: node {stuck[0].path} waits for node {before.path}, which waits for it;"
            " remove one of the two results from the arguments"
        )
    return ready
