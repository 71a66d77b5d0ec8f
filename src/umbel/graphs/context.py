"""What a canvas gets from the canvases that contain it: its path, and options for its nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from umbel.graphs.calls import merge, refuse_whole_options
from umbel.graphs.compiled import NO_OPTIONS, Compiled
from umbel.graphs.paths import below
from umbel.messages.nodes import Inside
from umbel.tasks.options import CallOptions
from umbel.tasks.task import Signature


@dataclass(frozen=True, slots=True)
class Context:
    """The path of a canvas, and what it gets from the canvases that contain it."""

    path: str
    chain: str | None = None
    """The path of the innermost chain that contains it."""
    defaults: CallOptions = NO_OPTIONS
    """Options of the canvases that contain it."""
    nesting: int = 0
    """How many canvases contain it."""
    is_aside: bool = False
    """Whether it belongs to a branch or a handler, so that the result does not depend on it."""
    is_later: bool = False
    """Whether a node before it may finish a chain that contains it."""
    inside: Inside = ()
    """The sub-workflows and replaced nodes that contain it."""

    def inner(self, number: int | str, **changes: Any) -> Context:
        """Return the context of a canvas in this one."""
        return replace(self, path=below(self.path, number), nesting=self.nesting + 1, **changes)


def with_options(context: Context, canvas: Any) -> Context:
    """Return the context with the options of a canvas as defaults for its nodes."""
    options = getattr(canvas, "call_options", NO_OPTIONS)
    if isinstance(canvas, Signature) or options == NO_OPTIONS:
        return context
    refuse_whole_options(canvas, context.path)
    return replace(context, defaults=merge(options, context.defaults))


def later(options: CallOptions, start: CallOptions) -> CallOptions:
    """Return the options of a node at the beginning of a workflow that starts later."""
    seconds = options.delay or 0.0
    if start.not_before is None:
        return replace(options, delay=seconds + (start.delay or 0.0))
    return replace(options, delay=None, not_before=start.not_before + timedelta(seconds=seconds))


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
