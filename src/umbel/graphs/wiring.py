"""The nodes of a graph while it is compiled, and the joins for which they wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from umbel.errors import ConfigurationError
from umbel.graphs.compiled import CompiledJoin, CompiledNode, Output
from umbel.graphs.context import Context
from umbel.graphs.paths import below, common_path
from umbel.messages import Fire
from umbel.tasks.options import CallOptions

MAX_NODES = 250_000
"""How many nodes a graph may have when it is published."""

Derive = Callable[[int], str]
"""Returns the id of the n-th node: the same for the same graph, so that publishing it again has no
effect."""


class Wiring:
    """The nodes and joins of one graph. ``prefix`` begins the names of its joins."""

    def __init__(self, prefix: str, derive: Derive) -> None:
        self.nodes: list[CompiledNode] = []
        self.loose: list[CompiledNode] = []
        """Nodes that end beside the others: nothing waits for them."""
        self._prefix = prefix
        self._derive = derive
        self._made = 0

    def add(self, context: Context) -> CompiledNode:
        """Add a node with the path and options of this context."""
        if len(self.nodes) >= MAX_NODES:
            raise ConfigurationError(
                f"canvas: more than {MAX_NODES:,} nodes; let each job do more with chunks, or"
                " publish several graphs"
            )
        node = CompiledNode(self._derive(len(self.nodes) + 1), context.path, chain=context.chain)
        node.is_later = context.is_later
        node.defaults = context.defaults
        node.is_aside = context.is_aside
        node.inside = context.inside
        self.nodes.append(node)
        return node

    def as_one(self, output: Output, context: Context) -> CompiledNode:
        """Return a node with the value of an output: for a list, one that gathers it."""
        if output.is_one:
            return output.nodes[0]
        kept = CallOptions(queue=context.defaults.queue, priority=context.defaults.priority)
        node = self.add(replace(context, path=below(context.path, "list"), defaults=kept))
        node.kind = "gather"
        node.extra["errors"] = "collect" if output.collect else "fail"
        node.reads.append((output, ()))
        node.returns = output.returns
        return node

    def shortened(self, before: Output, context: Context) -> Output:
        """Return an output of one node, for many nodes that each wait for something else, too."""
        one = self.as_one(before, replace(context, path=below(context.path, "before")))
        if before.is_no_value:
            return Output(is_no_value=True, also=[one])
        return Output([one], returns=before.returns)

    def wire(self, node: CompiledNode) -> None:
        """Let a node wait for what it reads: determine its join and the positions of its inputs."""
        outputs = [
            (self.separate(output, node) if len(node.reads) > 1 else output, keys)
            for output, keys in node.reads
        ]
        fires: set[Fire] = {output.fire for output, _ in outputs}
        if "failure" in fires and len(outputs) > 1:
            raise ConfigurationError(
                f"node {node.path}: a handler cannot wait for other nodes; remove their results"
                " from its arguments, and its .after(...)"
            )
        free: list[CompiledNode] = []  # these may fail
        needed = 0
        for output, keys in outputs:
            if keys is not None and not output.is_no_value:
                node.inputs.append(output.input(len(node.parts), keys))
                node.parts += [*output.nodes, *output.waited_for]
                needed += len(output.required)
            else:
                node.parts += output.required
                needed += len(output.required)
                free += output.optional
            free += output.lanes
        if free:
            node.free_from = len(node.parts)
            node.parts += free
        if not node.parts:
            return
        if foreign := [part.path for part in node.parts if part.is_external]:
            node.extra["foreign"] = common_path(foreign)
        node.fire = "failure" if "failure" in fires else "all" if "all" in fires else "success"
        node.checks = node.fire == "all" and needed > 0
        if node.fire == "failure" and foreign:
            node.fire, node.extra["acts"] = "all", True
        if len(outputs) > 1 or outputs[0][0].lanes:
            node.join = self.join(node.fire, node.parts)
            return
        only = outputs[0][0]
        key = (node.fire, bool(free))
        node.join = only.joins.get(key) or self.join(node.fire, node.parts)
        only.joins[key] = node.join

    def separate(self, output: Output, node: CompiledNode) -> Output:
        """Return an output that can be read beside others: failures of a list are gathered."""
        if not (output.is_list and output.collect):
            return output
        path = f"{node.path}.in{len(self.nodes)}"
        at = Context(path, node.chain, is_later=node.is_later)
        one = self.as_one(replace(output, lanes=[]), at)
        return Output([one], lanes=output.lanes, returns=output.returns)

    def join(self, fire: Fire, parts: list[CompiledNode]) -> CompiledJoin:
        """Return a new join of these nodes."""
        self._made += 1
        return CompiledJoin(f"{self._prefix}:{self._made:x}", fire, parts)
