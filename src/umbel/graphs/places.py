"""The place of a canvas in the whole: its path, what it inherits, and what it is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from umbel.graphs.calls import merge, refuse_whole_options
from umbel.graphs.compiled import NO_OPTIONS, Compiled, CompiledNode, Output, Place
from umbel.messages.nodes import Inside
from umbel.tasks.canvas import Chain
from umbel.tasks.options import CallOptions
from umbel.tasks.task import Signature
from umbel.tasks.workflow import Signal, WorkflowCall

MAX_ENCLOSED = 8
"""How many sub-workflows and replaced nodes around a node are known. Deeper ones are not drawn."""


@dataclass(frozen=True, slots=True)
class Where:
    """The surroundings of a canvas in the whole."""

    path: str
    chain: str | None = None
    defaults: CallOptions = NO_OPTIONS
    nesting: int = 0
    is_aside: bool = False
    is_later: bool = False
    """Whether a node before it may finish a chain that contains it."""
    around: Inside = ()
    """The sub-workflows and replaced nodes that contain it."""

    def inside(self, number: int | str, **changes: Any) -> Where:
        """Return the place of a part."""
        return replace(self, path=below(self.path, number), nesting=self.nesting + 1, **changes)


def following_undos(
    node: CompiledNode, undos: Sequence[tuple[CompiledNode, Signature[Any]]]
) -> list[str]:
    """Return the jobs with undos that come after a node: theirs have to end first."""
    found: list[str] = []
    for other, _ in undos:
        left, seen = [*other.parts], set[int]()
        while left:
            part = left.pop()
            if part is node:
                found.append(other.id)
                break
            if id(part) not in seen:
                seen.add(id(part))
                left += part.parts
    return found


def below(path: str, number: int | str) -> str:
    """Return the path of a part."""
    return f"{path}.{number}" if path else str(number)


def numbered(path: str, outer: str) -> str:
    """Return a path up to its last number, ``0.1`` of ``0.1.charge``, or the outer one."""
    parts = path.split(".")
    while len(parts) > depth_of(outer) and not parts[-1].isdigit():
        parts.pop()
    return ".".join(parts)


def depth_of(path: str) -> int:
    """Return how many words a path has."""
    return path.count(".") + 1 if path else 0


def enclosed(around: Inside, path: str, name: str) -> Inside:
    """Return what is around the nodes of a sub-workflow, or of what replaces a node."""
    return (*around, (depth_of(path), name))[:MAX_ENCLOSED]


def common_path(paths: Sequence[str]) -> str:
    """Return the path of the smallest part of a canvas that contains all of these."""
    common = paths[0].split(".")
    for path in paths[1:]:
        parts = path.split(".")
        same = [one == other for one, other in zip(common, parts, strict=False)]
        common = common[: same.index(False) if False in same else len(same)]
    return ".".join(common)


def shown(place: Place) -> str:
    """Return the place of an argument for an error text."""
    return ".".join(str(key) for key in place[1:])


def short_name(canvas: Any) -> str:
    """Return the last word of a task's name, or what a canvas is."""
    if isinstance(canvas, WorkflowCall):
        text = canvas.workflow.name
    elif isinstance(canvas, Signature):
        text = canvas.task.name
    elif isinstance(canvas, Signal):
        return canvas.name.replace(".", "-")
    else:
        return type(canvas).__name__.lower()
    return text.rpartition(".")[2] or "node"


def label_of(canvas: Any, limit: int = 80) -> str:
    """Return a short description of a canvas."""
    if isinstance(canvas, WorkflowCall):
        text = canvas.workflow.name
    elif isinstance(canvas, Signature):
        text = canvas.task.name
    elif isinstance(canvas, Chain):
        text = " | ".join(label_of(part, limit // 2) for part in canvas.parts[:8])
    else:
        text = repr(canvas)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def after_lane(before: Output | None, lane: CompiledNode) -> Output:
    if before is None:
        return Output(is_no_value=True, lanes=[lane])
    return replace(before, lanes=[*before.lanes, lane], joins={})


def later(options: CallOptions, start: CallOptions) -> CallOptions:
    """Return the options of a node at the beginning of a workflow that starts later."""
    seconds = options.delay or 0.0
    if start.not_before is None:
        return replace(options, delay=seconds + (start.delay or 0.0))
    return replace(options, delay=None, not_before=start.not_before + timedelta(seconds=seconds))


def limit_of_runs(canvas: WorkflowCall[Any]) -> str:
    """Return what a workflow limits for runs of its own; empty if there is nothing."""
    workflow = canvas.workflow
    limits = {"deadline": workflow.deadline, "limit": workflow.limit}
    return next((name for name, value in limits.items() if value is not None), "")


def cannot_replace(canvas: Any) -> str:
    return f"{canvas}: its deadline, limit and undos need a run of its own; start it with delay"


def with_options(where: Where, canvas: Any) -> Where:
    """Return the place with the options of a canvas as defaults for its nodes."""
    options = getattr(canvas, "call_options", NO_OPTIONS)
    if isinstance(canvas, Signature) or options == NO_OPTIONS:
        return where
    refuse_whole_options(canvas, where.path)
    return replace(where, defaults=merge(options, where.defaults))


def root_defaults(canvas: Any, compiled: Compiled) -> CallOptions:
    """Return queue and priority of the root: those of the canvas, or of its first task."""
    options = canvas.call_options
    first = next((node.call for node in compiled.nodes if node.call is not None), None)
    queue, priority = options.queue, options.priority
    if first is not None:
        own, declared = first.call_options, first.task.declared
        queue = queue or own.queue or declared.queue
        if priority is None:
            priority = declared.priority if own.priority is None else own.priority
    return CallOptions(queue=queue, priority=priority)


def list_type(nodes: Sequence[CompiledNode], collect: bool) -> Any:
    kinds = {str(node.returns): node.returns for node in nodes}
    if collect or len(kinds) != 1 or Any in kinds.values():
        return Any
    (only,) = kinds.values()
    return list_of(only)


def list_of(returns: Any) -> Any:
    """Return the type of a list of results."""
    return Any if returns is Any else list[returns]
