"""What replaces a node when it runs: the canvas that its task returned, or the jobs of a map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from umbel.errors import ConfigurationError, UmbelError
from umbel.graphs.compiled import Compiled, CompiledJoin, CompiledNode
from umbel.graphs.compiler import Compiler
from umbel.graphs.paths import enclosed
from umbel.graphs.publications import growth
from umbel.messages import (
    GROUP_HEADER,
    NODE_HEADER,
    BodyCodec,
    Delivery,
    Envelope,
    Growth,
    Input,
    NodeSpec,
    derived_id,
    is_inbox,
)
from umbel.tasks import Signature, Task
from umbel.tasks.canvas import Map

MAX_REPLACEMENTS = 50
"""How often a node may be replaced by one that is replaced."""
_MAX_ITEMS = 2_000
"""How many jobs a step of a map adds. A larger map grows in several steps."""

AGAIN = "again"
"""The keyword argument of a node that waits for time to pass, if it is retried."""

BuildNodes = Callable[[Sequence[CompiledNode], str, str], dict[CompiledNode, Envelope]]
"""Builds envelopes of nodes for a group, with the queue of nodes that run no task."""


def grow(
    canvas: Any, job: str, fence: int, task: str, spec: NodeSpec | None, group: str, queue: str,
    build: BuildNodes,
) -> Growth:  # fmt: skip
    """Return what replaces a running job. Its ids are the same if it is called again.

    Raises:
        ConfigurationError: it is too large, or replaced too often.
    """
    prefix = f"{job}:{fence}"

    def derive(number: int) -> str:
        return derived_id(job, fence, number)

    if spec is None:  # the job is no node of a graph: a graph of its own is its result
        root = derive(0)
        compiled = Compiler(prefix, derive).graph(canvas, (), root)
        return growth(compiled, compiled.nodes[0], build(compiled.nodes, root, queue), root, prefix)
    if spec.depth >= MAX_REPLACEMENTS:
        raise ConfigurationError(
            f"replace: node {spec.path} was replaced {spec.depth} times by a task that is replaced"
            " again; let it return a value"
        )
    inside = enclosed(spec.inside, spec.path, task)
    compiler = Compiler(prefix, derive, spec.path, spec.depth + 1, spec.chain, inside=inside)
    compiled, replacement = compiler.replacement(canvas)
    return growth(compiled, replacement, build(compiled.nodes, group, queue), group, prefix)


def wait_again(
    delivery: Delivery, spec: NodeSpec, codec: BodyCodec, before: Sequence[str]
) -> Growth | None:
    """Return what replaces a sleep, timeout or deadline that is retried, else None.

    A retry queues a job at once, so a wait that was interrupted needs a new job with a delay.
    ``before`` are the jobs for which it waits: the new job has to wait again, too, if one of them
    runs again.
    """
    template = delivery.envelope
    data = codec.decode(template.body)
    if AGAIN not in data.get("kwargs", {}):
        return None
    job, fence = delivery.lease.job, delivery.lease.fence
    prefix = f"{job}:{fence}"
    replacement = CompiledNode(derived_id(job, fence, 1), f"{spec.path}.again", spec.kind)
    spec = replace(spec, path=replacement.path)
    if before:
        parts = [CompiledNode(one, "", is_external=True) for one in before]
        replacement.join = CompiledJoin(f"{prefix}:1", "all", parts)
        spec = replace(spec, join=replacement.join.id, checks=True)
    envelope = replace(
        template,
        id=replacement.id,
        body=codec.encode({"args": data["args"], "kwargs": {}}, what=f"seconds of {spec.path}"),
        delay=data["args"][0],
        not_before=None,
        created=0.0,
        attempt=1,
        headers={**template.headers, NODE_HEADER: spec.encode()},
    )
    return growth(
        Compiled([replacement], []),
        replacement,
        {replacement: envelope},
        template.headers[GROUP_HEADER],
        prefix,
    )


class MapExpander:
    """Makes the jobs of a map from the message of its node, which is their template."""

    def __init__(self, task: Task[..., Any], delivery: Delivery, spec: NodeSpec, codec: BodyCodec):
        self._task = task
        self._template = delivery.envelope
        self._spec = spec
        self._codec = codec
        self._group = self._template.headers[GROUP_HEADER]
        self._job, self._fence = delivery.lease.job, delivery.lease.fence
        self._prefix = f"{self._job}:{self._fence}"
        self._inside = enclosed(spec.inside, spec.path, task.name)

    def expand(self, items: Sequence[Any]) -> Growth:
        """Return the jobs of these items. Raise UmbelError if one of them cannot be a job."""
        spec = self._spec
        if spec.part is not None:
            items = items[spec.part[0] : spec.part[1]]
        # With "cancel", each item has a node more, which cancels the others.
        portion = _MAX_ITEMS // (2 if spec.errors == "cancel" else 1) * max(spec.size, 1)
        if spec.part is None and len(items) > portion:
            return self._split(len(items), portion)
        data = self._codec.decode(self._template.body)
        call = Signature(self._task, tuple(data["args"]), data["kwargs"])
        mapped: Map[Any] = Map(
            call, items, star=spec.star, size=spec.size, errors=spec.errors,
            limit=spec.limit or None,
        )  # fmt: skip
        scope = spec.path.rpartition(".")[0] if spec.part is not None else ""
        compiler = Compiler(
            self._prefix, self._derive, spec.path, spec.depth, cancel_scope=scope,
            inside=self._inside, checks_calls=False,
        )  # fmt: skip
        compiled, replacement = compiler.replacement(mapped)
        return growth(compiled, replacement, self._envelopes(compiled), self._group, self._prefix)

    def _split(self, count: int, portion: int) -> Growth:
        """Return a map for each portion of the items, and a node that joins their lists."""
        spec = self._spec
        if spec.limit:
            raise ConfigurationError(
                f"limit of map {spec.path}: not for more than {portion:,} items, which need"
                " several steps; give the task a limit, or use chunks"
            )
        nodes = []
        for number, first in enumerate(range(0, count, portion)):
            node = CompiledNode(self._derive(number + 1), f"{spec.path}.{number}", "map")
            node.extra = {"part": (first, min(first + portion, count))}
            nodes.append(node)
        joined = CompiledNode(self._derive(len(nodes) + 1), f"{spec.path}.list", "gather")
        joined.parts = nodes
        joined.join = CompiledJoin(f"{self._prefix}:1", "success", nodes)
        joined.inputs = [Input((), "flat", 0, len(nodes))]
        compiled = Compiled([*nodes, joined], [])
        return growth(compiled, joined, self._envelopes(compiled), self._group, self._prefix)

    def _derive(self, number: int) -> str:
        return derived_id(self._job, self._fence, number)

    def _envelopes(self, compiled: Compiled) -> dict[CompiledNode, Envelope]:
        return {node: self._envelope(node) for node in compiled.nodes}

    def _envelope(self, node: CompiledNode) -> Envelope:
        template, body, spec = self._template, self._template.body, node.spec()
        common = {key: template.headers[key] for key in (GROUP_HEADER,)}
        if node.kind == "map":  # it reads what this one reads, and waits for nothing
            spec = replace(self._spec, path=node.path, part=node.extra["part"], inside=self._inside)
            common = template.headers
        elif node.call is not None:
            data = {"args": node.call.args, "kwargs": node.call.kwargs}
            body = self._codec.encode(data, what=f"arguments of node {node.path}")
            common = template.headers
        is_task = node.call is not None
        subject = template.subject if is_task or node.kind == "map" else f"umbel.{node.kind}"
        return replace(
            template,
            id=node.id,
            subject=subject,
            body=body,
            kind=template.kind if subject == template.subject else "io",
            queue=template.queue,
            created=0.0,
            not_before=None,
            attempt=1,
            unique=None,
            gates=self._gates(node) if is_task else (),
            headers={**common, NODE_HEADER: spec.encode()},
        )

    def _gates(self, node: CompiledNode) -> tuple[str, ...]:
        """Return the gates of a call; none if that fails: the worker that takes it says why."""
        assert node.call is not None
        if is_inbox(self._template.queue):
            return ()
        try:
            return self._task.gates(self._template.queue, node.call.args, node.call.kwargs)
        except Exception:  # noqa: BLE001 - a token may be user code
            return ()


def as_items(value: Any, path: str) -> list[Any]:
    """Return the items of a map. Raise UmbelError if the value is no list."""
    if isinstance(value, list | tuple):
        return [*value]
    raise UmbelError(
        f"map at node {path}: the value before it is {type(value).__name__}, not a list; return a"
        " list"
    )
