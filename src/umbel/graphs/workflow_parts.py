"""What only workflows have: signals, sleeps, undos, a deadline, and a limit of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from umbel.errors import ConfigurationError
from umbel.graphs.arguments import check_call, check_edge
from umbel.graphs.calls import refuse_results_of_undo
from umbel.graphs.compiled import Compiled, CompiledNode, Output
from umbel.graphs.context import Context
from umbel.graphs.wiring import Wiring
from umbel.tasks.composing import OPEN
from umbel.tasks.options import CallOptions
from umbel.tasks.task import Signature
from umbel.tasks.waiting_nodes import NOTHING, TYPES, Signal, Sleep
from umbel.tasks.workflow import WorkflowCall

Named = Callable[[str], str]
"""Returns the id of a node that can be found by its name, such as a signal."""
PLACE_PATH = "place"
FOREVER_SECONDS = 3e9
"""Seconds after which the job of a signal would run that was not given."""


class WorkflowParts:
    """Adds these nodes to a graph. In a canvas that replaces a node, only some are allowed.

    ``named`` is None for such a canvas.
    """

    def __init__(self, wiring: Wiring, named: Named | None) -> None:
        self._wiring = wiring
        self._named = named
        self.place: Output | None = None
        """For what the nodes at the beginning of a workflow with a limit wait."""
        self.signals: dict[CompiledNode, tuple[Signal, Output | None, Output]] = {}
        self.undos: list[tuple[CompiledNode, Signature[Any]]] = []

    def signal(self, canvas: Signal, before: Output | None, context: Context) -> Output:
        """Add a signal."""
        if self._named is None:
            raise ConfigurationError(f"{canvas!r}: it cannot be in a canvas that replaces a node")
        if any(one.name == canvas.name for one, _, _ in self.signals.values()):
            raise ConfigurationError(f"{canvas!r} is there twice; give each a name of its own")
        if before is not None and before.is_failure:
            raise ConfigurationError(
                f"{canvas!r}: a handler cannot begin with a signal; put a task before it"
            )
        node = self._wiring.add(replace(context, defaults=CallOptions(delay=FOREVER_SECONDS)))
        node.id, node.kind = self._named(f"signal {canvas.name}"), "signal"
        node.extra |= {"signal": canvas.name, "accepts": canvas.type}
        if canvas.type and (canvas.default is NOTHING or canvas.default is not None):
            node.returns = TYPES[canvas.type]
        output = Output([node], returns=node.returns)
        output.is_gated = before is not None or bool(canvas.before)
        output.earlier += [] if before is None else [self._wiring.separate(before, node)]
        self.signals[node] = canvas, before, output
        return output

    def finish_signals(self) -> None:
        """Add what ends signals that are not given."""
        for node, signal in self.signals.items():
            if self.place is not None:
                signal[2].earlier = self.without_place(signal[2].earlier)
            self._finish(node, *signal)

    def _finish(
        self, node: CompiledNode, canvas: Signal, before: Output | None, output: Output
    ) -> None:
        """Add what ends a signal that is not given: its timeout, and a failure before it."""
        assert self._named is not None
        waits = output.earlier
        parts = [part for one in waits for part in (*one.nodes, *one.waited_for)]
        at = Context(node.path, is_aside=True)
        if parts:
            release = self._wiring.add(replace(at, path=f"{node.path}.release"))
            release.kind, release.extra = "release", {"target": node.id}
            release.reads.append((Output(parts, is_failure=True), None))
            self._wiring.loose.append(release)
        if canvas.timeout is not None:
            delay = CallOptions(delay=canvas.timeout)
            timer = self._wiring.add(replace(at, path=f"{node.path}.timeout", defaults=delay))
            timer.id, timer.kind = self._named(f"timeout {canvas.name}"), "timer"
            timer.extra = {"target": node.id, "label": canvas.name}
            defaults = [] if canvas.default is NOTHING else [canvas.default]
            timer.arguments = [canvas.timeout, *defaults]
            timer.reads += [(one.only_waited_for(), None) for one in waits]
            self._wiring.loose.append(timer)

    def sleep(self, canvas: Sleep, before: Output | None, context: Context) -> Output:
        """Add a sleep. It passes on what it gets."""
        node = self._wiring.add(replace(context, defaults=CallOptions(delay=canvas.seconds)))
        node.kind, node.after = "sleep", canvas.before
        node.extra["label"] = f"{canvas.seconds:g} s"
        node.arguments = [canvas.seconds]
        if before is not None:
            node.reads.append((before, None if before.is_no_value else ()))
            node.returns = before.returns
        return Output([node], returns=node.returns)

    def add_place(self, canvas: Any) -> None:
        """Add the node that waits until fewer runs than the limit of a workflow are active."""
        if isinstance(canvas, WorkflowCall) and canvas.workflow.limit is not None:
            options = canvas.call_options
            own = CallOptions(
                queue=options.queue, priority=options.priority, expires=options.expires
            )
            node = self._wiring.add(Context(PLACE_PATH, defaults=own))
            node.kind = "place"
            node.extra = {"label": canvas.workflow.name, "limit": canvas.workflow.limit}
            self.place = Output(is_no_value=True, also=[node])

    def without_place(self, outputs: list[Output]) -> list[Output]:
        """Leave the place out if another of these outputs is known only after it."""
        others = [one for one in outputs if one is not self.place and one.of is not self.place]
        before = (node for one in others for node in one.required)
        is_later = any(not node.is_external and node.kind != "signal" for node in before)
        return others if is_later else outputs

    def add_deadline(self, canvas: Any) -> None:
        """Add the node that ends a run when the deadline of its workflow has passed."""
        if isinstance(canvas, WorkflowCall) and canvas.workflow.deadline is not None:
            if self._named is None:
                raise ConfigurationError(cannot_replace(canvas))
            delay = CallOptions(delay=canvas.workflow.deadline)
            node = self._wiring.add(Context("deadline", defaults=delay, is_aside=True))
            node.id, node.kind = self._named("deadline"), "deadline"
            node.arguments = [canvas.workflow.deadline]
            self._wiring.loose.append(node)

    def undo_node(
        self, root: CompiledNode, compiled: Compiled, *, compensate: bool
    ) -> list[CompiledNode]:
        """Return the node that undoes what has succeeded, if the graph fails."""
        if not self.undos:
            return []
        if self._named is None:
            raise ConfigurationError(cannot_replace(root.extra["label"]))
        node = CompiledNode(self._named("undo"), "undo", "undo")
        node.undos = [(one, undo, following_undos(one, self.undos)) for one, undo in self.undos]
        for one, undo, _ in node.undos:
            args = undo.args if undo.immutable else (OPEN, *undo.args)
            check_call(undo, args, f"{one.path}.undo")
            if not undo.immutable:
                check_edge(f"{one.path}.undo", undo, ("args", 0), one.returns, [one])
            refuse_results_of_undo(undo, one.path)
        trunk = [one for one in compiled.nodes if not one.is_aside and not one.is_external]
        node.parts, node.fire = [root, *trunk], "failure"
        node.extra["on_cancel"] = compensate
        node.join = self._wiring.join("failure", node.parts)
        return [node]


def limit_of_runs(canvas: WorkflowCall[Any]) -> str:
    """Return what a workflow limits for runs of its own; empty if there is nothing."""
    workflow = canvas.workflow
    limits = {"deadline": workflow.deadline, "limit": workflow.limit}
    return next((name for name, value in limits.items() if value is not None), "")


def cannot_replace(canvas: Any) -> str:
    """Return why a workflow cannot replace a node."""
    return f"{canvas}: its deadline, limit and undos need a run of its own; start it with delay"


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
