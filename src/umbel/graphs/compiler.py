"""Compiles a canvas to nodes: which jobs there are, what each waits for, and what it reads.

A node waits for one join, whose parts are the nodes before it. Where a list is needed as one
result, for example of a group in a group, a node that *gathers* it is added; it runs no task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from umbel.errors import BadArguments, ConfigurationError
from umbel.graphs.annotations import list_of, list_type
from umbel.graphs.arguments import argument_name, check_call, check_edge, check_parameter, extract
from umbel.graphs.calls import (
    calls_of,
    refuse_results,
    refuse_tokens,
    refuse_unique,
    refuse_whole_options,
    refuse_worker,
)
from umbel.graphs.compiled import (
    NO_OPTIONS,
    ArgumentKeys,
    Chunk,
    Compiled,
    CompiledNode,
    Output,
    in_order,
)
from umbel.graphs.conditions import encode_condition
from umbel.graphs.context import Context, later, root_defaults, with_options
from umbel.graphs.labels import label_of, short_name
from umbel.graphs.paths import below, enclosed, numbered
from umbel.graphs.wiring import Derive, Wiring
from umbel.graphs.workflow_parts import (
    PLACE_PATH,
    Named,
    WorkflowParts,
    cannot_replace,
    limit_of_runs,
)
from umbel.messages import Policy
from umbel.messages.nodes import Inside
from umbel.tasks.canvas import Chain, Fork, Group, Map
from umbel.tasks.composing import OPEN, Composable, ResultOf
from umbel.tasks.conditions import Placeholder
from umbel.tasks.handle import Handle
from umbel.tasks.options import CallOptions
from umbel.tasks.task import Signature
from umbel.tasks.waiting_nodes import Signal, Sleep
from umbel.tasks.workflow import WorkflowCall, parts_of, walk

MAX_NESTING = 200
_MAX_PRIORITY = 32_767


class Compiler:
    """Compiles one canvas. ``prefix`` begins the names of its joins, ``base`` its paths."""

    def __init__(
        self,
        prefix: str,
        derive: Derive,
        base: str = "",
        depth: int = 0,
        chain: str | None = None,
        cancel_scope: str = "",
        inside: Inside = (),
        named: Named | None = None,
        *,
        checks_calls: bool = True,
    ) -> None:
        self._wiring = Wiring(prefix, derive)
        self._workflow = WorkflowParts(self._wiring, named)
        self._base = base
        self._depth = depth
        self._outer_chain = chain
        self._cancel_scope = cancel_scope
        self._inside = inside
        self._owners: dict[int, tuple[str, Inside]] = {}
        """By the identity of a canvas in a sub-workflow: its path, and what is around its nodes."""
        self._top: Any = None
        self._checks_calls = checks_calls
        """Whether calls that do not fit are refused. Otherwise only their jobs fail."""
        self._defaults = NO_OPTIONS
        """The options of the whole, which nodes in arguments have, too."""
        self._outputs: dict[int, Output] = {}
        """By the identity of a signature or canvas."""
        self._uses: dict[int, int] = {}
        """How often each signature is in the canvas, by its identity."""
        self._kept: list[Any] = []
        """The objects whose identities are keys: kept, so that no other gets the same."""
        self._map_sources: dict[CompiledNode, tuple[ResultOf, Output | None]] = {}
        """Maps over the result of a node that may be anywhere in the canvas."""
        self._readers: Counter[int] = Counter()
        """By how many nodes each canvas is used; counted when a result is an argument first."""
        self._start = NO_OPTIONS
        """When a workflow starts: for the nodes at its beginning."""
        self._names: Counter[str] = Counter()

    # --- entry points ------------------------------------------------------------------------

    def graph(self, canvas: Composable[Any], first: Sequence[Any], root_id: str) -> Compiled:
        """Return the nodes of a graph. The first one is its root, whose result is the result."""
        root = CompiledNode(root_id, self._base, "graph")
        self._workflow.add_place(canvas)
        if self._workflow.place is not None:
            self._names[PLACE_PATH] += 1
        before = self._workflow.place
        if first:
            also = [] if before is None else before.also
            before = Output(is_no_value=True, given=tuple(first), also=also)
        output = self._whole(canvas, before)
        root.reads = [(output, ())]
        root.returns = output.returns
        self._wiring.wire(root)
        root.fire = "all"
        if root.parts:
            root.join = self._wiring.join("all", root.parts)
        self._workflow.add_deadline(canvas)
        compiled = self._finish()
        root.defaults = root_defaults(canvas, compiled)
        for node in compiled.nodes:
            if node.call is None and node.defaults.priority is None:
                node.defaults = replace(node.defaults, priority=root.defaults.priority)
        root.extra |= {"label": label_of(canvas), "total": compiled.tasks}
        if isinstance(canvas, WorkflowCall):
            root.extra |= {"workflow": canvas.workflow.name, "version": canvas.workflow.version}
            root.extra["limit"] = canvas.workflow.limit or 0
        compensate = not isinstance(canvas, WorkflowCall) or canvas.workflow.compensate
        undo = self._workflow.undo_node(root, compiled, compensate=compensate)
        return Compiled([root, *compiled.nodes, *undo], [*compiled.loose, *undo])

    def replacement(self, canvas: Any) -> tuple[Compiled, CompiledNode]:
        """Return the nodes that replace a node, and the one of them with the result."""
        if isinstance(canvas, WorkflowCall) and limit_of_runs(canvas):
            raise ConfigurationError(cannot_replace(canvas))
        output = self._whole(canvas, None)
        node = self._wiring.as_one(output, Context(self._base))
        if self._workflow.undos:
            raise ConfigurationError(
                f"{self._workflow.undos[0][0].path}, compensate: it cannot be in a canvas that"
                " replaces a node; give it to a node of the workflow"
            )
        if node.is_external:
            raise ConfigurationError("replace: give signatures or a canvas, not a handle alone")
        return self._finish(), node

    def _whole(self, canvas: Any, before: Output | None) -> Output:
        self._count(canvas)
        path = self._base
        if isinstance(canvas, WorkflowCall):
            path = self._path_of_result(canvas, path)
        elif not isinstance(canvas, Chain | Group):
            path = below(path, 0)
        if isinstance(canvas, Signature):  # its other options belong to the whole
            own = replace(canvas.call_options, unique=None, id=None, connection=None)
            self._top = leaf = msgspec.structs.replace(canvas, call_options=own)
            at = Context(path, self._outer_chain, inside=self._inside)
            return self._compile(leaf, before, at)
        defaults = replace(canvas.call_options, unique=None, id=None, connection=None)
        if isinstance(canvas, WorkflowCall):  # its nodes refer to one another
            self._start = CallOptions(delay=defaults.delay, not_before=defaults.not_before)
            defaults = replace(defaults, delay=None, not_before=None)
        self._top, self._defaults = canvas, defaults
        context = Context(path, self._outer_chain, defaults, inside=self._inside)
        return self._compile(canvas, before, context, is_whole=True)

    def _finish(self) -> Compiled:
        for node in self._wiring.nodes:  # it grows meanwhile
            if node in self._map_sources:
                source, waited = self._map_sources[node]
                node.reads = [(self._output_of(source, node, ("args", 0)), ())]
                node.reads += [] if waited is None else [(waited, None)]
            if node.kind in ("", "chunk") and not node.is_external:
                self._read_arguments(node)
            for canvas in node.after:
                node.reads.append((self._output_of(canvas, node, ("after",)), None))
            if node in self._workflow.signals:
                canvas, _, output = self._workflow.signals[node]
                for one in canvas.before:
                    known = self._output_of(one, node, ("after",))
                    output.earlier.append(self._wiring.separate(known, node))
        self._workflow.finish_signals()
        for node in self._wiring.nodes:  # it grows meanwhile
            if self._workflow.place is not None and len(node.reads) > 1:
                kept = {*self._workflow.without_place([output for output, _ in node.reads])}
                node.reads = [one for one in node.reads if one[0] in kept]
            self._wiring.wire(node)
            if not node.parts and node.kind != "signal" and self._start != NO_OPTIONS:
                node.defaults = later(node.defaults, self._start)
            if self._depth:
                node.extra["depth"] = self._depth
        ordered = [node for node in in_order(self._wiring.nodes) if not node.is_external]
        return Compiled(ordered, self._wiring.loose)

    # --- forms -------------------------------------------------------------------------------

    def _compile(
        self, canvas: Any, before: Output | None, context: Context, *, is_whole: bool = False
    ) -> Output:
        """Return the output of a canvas that runs after ``before``."""
        if context.nesting > MAX_NESTING:
            raise ConfigurationError(f"canvas: nested more than {MAX_NESTING} times; nest it less")
        inner = context if is_whole else with_options(context, canvas)
        if isinstance(canvas, Handle):
            output = self._external(canvas, before, context)
        elif isinstance(canvas, Signature):
            output = self._leaf(canvas, before, context)
        elif isinstance(canvas, Chunk):
            output = self._chunk(canvas, before, context)
        elif isinstance(canvas, Chain):
            output = self._chain(canvas, before, inner)
        elif isinstance(canvas, Group):
            output = self._group(canvas.members, before, inner, canvas.errors, canvas.limit)
        elif isinstance(canvas, Map):
            output = self._map(canvas, before, inner)
        elif isinstance(canvas, WorkflowCall):
            if (limited := limit_of_runs(canvas)) and not is_whole:
                raise ConfigurationError(
                    f"{canvas!r} at {context.path}: it has a {limited}, which counts only for a run"
                    f" of its own; give the {limited} to the workflow that contains it"
                )
            if canvas.immutable and before is not None:
                before = before.only_waited_for()
            output = self._sub_workflow(canvas, before, inner, is_whole=is_whole)
        elif isinstance(canvas, Signal):
            output = self._workflow.signal(canvas, before, context)
        elif isinstance(canvas, Sleep):
            output = self._workflow.sleep(canvas, before, context)
        else:
            raise ConfigurationError(
                f"{canvas!r:.80}: a fork is a part of a chain; write a.s() | fork(...)"
            )
        self._outputs.setdefault(id(canvas), output)
        self._kept.append(canvas)
        covers = self._base if canvas is self._top else context.path
        self._handle_all(canvas, _may_fail(output), inner, covers)
        return output

    def _sub_workflow(
        self, call: WorkflowCall[Any], before: Output | None, context: Context, *, is_whole: bool
    ) -> Output:
        if is_whole:
            is_call = isinstance(call.canvas, WorkflowCall)
            return self._compile(call.canvas, before, context, is_whole=not is_call)
        inside = enclosed(context.inside, context.path, call.workflow.name)
        self._owners |= dict.fromkeys(map(id, call.own()), (context.path, inside))
        path = self._path_of_result(call, context.path)
        at = replace(context, path=path, nesting=context.nesting + 1, inside=inside)
        return self._compile(call.canvas, before, at)

    def _path_of_result(self, call: WorkflowCall[Any], path: str) -> str:
        """Return the path of what a workflow returns: parts of a chain or group have numbers."""
        if isinstance(call.canvas, Chain | Group):
            return path
        return self._named_path(path, call.canvas)

    def _external(self, handle: Handle[Any], before: Output | None, context: Context) -> Output:
        if context.chain is not None and before is not None:
            raise ConfigurationError(
                f"node {context.path}: a handle is a job that was published before, so it cannot"
                " wait for others; make it the first part of the chain, or a member of a group"
            )
        node = CompiledNode(handle.id, context.path, is_external=True, returns=handle.returns)
        self._wiring.nodes.append(node)
        return Output([node], returns=node.returns)

    def _leaf(self, call: Signature[Any], before: Output | None, context: Context) -> Output:
        refuse_whole_options(call, context.path)
        node = self._wiring.add(context)
        args = call.args
        gets_result = before is not None and not before.is_no_value and not call.immutable
        if before is not None and before.given and not call.immutable:
            args = (*before.given, *args)
        if gets_result:
            args = (OPEN, *args)
        if self._checks_calls:
            check_call(call, args, node.path)
        node.call = msgspec.structs.replace(call, args=args)
        node.after = call.before
        if call.undo is not None:
            self._workflow.undos.append((node, call.undo))
        node.returns = call.task.parameters.returns
        if before is not None:
            node.reads.append((before, ("args", 0) if gets_result else None))
            if gets_result:
                check_edge(node.path, call, ("args", 0), before.returns, before.nodes)
        return Output([node], returns=node.returns)

    def _chunk(self, chunk: Chunk, before: Output | None, context: Context) -> Output:
        node = self._wiring.add(context)
        node.kind = "chunk"
        refuse_tokens(chunk.call, node.path)
        node.extra["errors"] = chunk.errors
        call = chunk.call
        calls = [(*one, *call.args) for one in chunk.calls]
        for args in calls if self._checks_calls else ():
            check_call(call, args, node.path)
        node.call = Signature(call.task, (calls,), call.kwargs, call.call_options)
        if before is not None:
            node.reads.append((before, None))
        returns = Any if chunk.errors == "collect" else call.task.parameters.returns
        return Output([node], returns=list_of(returns))

    def _chain(self, canvas: Chain[Any], before: Output | None, context: Context) -> Output:
        output, here = before, replace(context, chain=context.path)
        for number, part in enumerate(canvas.parts):
            at = here.inner(number, is_later=here.is_later or number > 0)
            if isinstance(part, Fork):
                at = with_options(replace(at, chain=None, is_aside=True), part)
                may_fail: list[CompiledNode] = []
                for index, branch in enumerate(part.branches):
                    ended = self._compile(branch, output, at.inner(index))
                    self._wiring.loose += ended.nodes
                    may_fail += _may_fail(ended)
                self._handle_all(part, may_fail, at, at.path)
                continue
            output = self._compile(part, output, at)
            # A delay of the whole is a delay of its first part.
            here = replace(here, defaults=replace(here.defaults, delay=None, not_before=None))
        assert output is not None
        if canvas is not self._top and len(canvas.parts) > 1 and not output.is_one:
            # A task may finish the chain: then its value is not the list of these nodes.
            at = replace(here, is_later=True)
            return Output([self._wiring.as_one(output, at)], returns=output.returns)
        return output

    def _group(
        self,
        members: Sequence[Any],
        before: Output | None,
        context: Context,
        errors: Policy,
        limit: int,
        *,
        is_flat: bool = False,
    ) -> Output:
        found: list[CompiledNode] = []
        if limit and len(members) > limit and before is not None and not before.is_short:
            before = self._wiring.shortened(before, context)
        for number, member in enumerate(members):
            # A member is its own chain: a task that finishes it does not end those around it.
            at, start = context.inner(number, chain=None), before
            if limit and number >= limit:
                start = _after_lane(before, found[number - limit])
            found.append(self._wiring.as_one(self._compile(member, start, at), at))
        collect = errors == "collect"
        also: list[CompiledNode] = []
        # The group fails if what is before it fails: no member says so in these cases.
        is_alone = all(node.is_external for node in found)  # then none waits for what is before
        if before is not None and is_alone and before.optional:
            also = [
                self._wiring.as_one(before, replace(context, path=below(context.path, "before")))
            ]
        elif before is not None and (collect or is_alone):
            also = before.required
        if errors == "cancel":
            for number, node in enumerate(found):
                self._cancel_others(node, context, number)
        returns = Any if collect else list_type([node.returns for node in found])
        return Output(found, True, is_flat, collect, also=also, returns=returns)

    def _map(self, canvas: Map[Any], before: Output | None, context: Context) -> Output:
        items, call, shown = canvas.items, canvas.signature, context.path or "0"
        given: list[tuple[ArgumentKeys, str]] = []
        if items is None and before is not None and before.given:
            if len(before.given) != 1 or not isinstance(before.given[0], Iterable):
                raise BadArguments(f"map at {shown}: give one list of items")
            items = [*before.given[0]]
        if items is None and (before is None or before.is_no_value):
            raise BadArguments(
                f"map at {shown}: give it a list of items, or a node before it in a chain"
            )
        waited = None if before is None else before.only_waited_for()
        if not isinstance(items, list) or len(items) > 1:
            refuse_unique(call, shown)
        if isinstance(items, list):
            calls = calls_of(call, items, canvas.star, canvas.size, canvas.errors)
            return self._group(
                calls, waited, context, canvas.errors, canvas.limit, is_flat=bool(canvas.size)
            )
        refuse_results(call, shown)
        refuse_worker(call, shown)
        if canvas.size:
            refuse_tokens(call, shown)
        node = self._wiring.add(replace(context, path=shown))
        source = before
        if isinstance(items, ResultOf):
            self._map_sources[node] = (items, waited)
        elif isinstance(items, Placeholder):
            source, given = Output(), [((), repr(items))]  # of a workflow that is only checked
        elif items is not None:
            source = self._compile(items, waited, context.inner("items", chain=None))
        node.kind, node.call, node.parameters = "map", call, given
        node.extra |= {"star": canvas.star, "size": canvas.size, "errors": canvas.errors}
        node.extra["limit"] = canvas.limit
        if source is not None and not isinstance(items, ResultOf):
            node.reads.append((source, ()))
        returns = Any if canvas.errors == "collect" else call.task.parameters.returns
        return Output([node], returns=list_of(returns))

    def _handle_all(
        self, canvas: Any, may_fail: list[CompiledNode], context: Context, covers: str
    ) -> None:
        """Add the handlers of a canvas. ``covers`` is the path of their scope."""
        if not may_fail:
            return
        at = replace(context, chain=None, is_later=False)
        for number, handler in enumerate(getattr(canvas, "handlers", ())):
            self._handle(handler, may_fail, at, number, covers)

    def _handle(
        self, handler: Any, parts: list[CompiledNode], context: Context, number: int, covers: str
    ) -> None:
        """Let a handler run if one of the parts has failed, after all of them have ended."""
        first = len(self._wiring.nodes)
        kept = CallOptions(queue=context.defaults.queue, priority=context.defaults.priority)
        path = below(context.path, f"e{number}")
        at = replace(context, path=path, defaults=kept, is_aside=True)
        if isinstance(handler, Signature | Map):
            at = at.inner(0)
        output = self._compile(handler, Output(parts, is_failure=True), at)
        for node in self._wiring.nodes[first:]:
            node.handler = True
            if covers:
                node.extra.setdefault("scope", covers)
        self._wiring.loose += output.nodes

    def _cancel_others(self, member: CompiledNode, context: Context, number: int) -> None:
        """Add a node that cancels the group if this member fails."""
        # It must not wait behind the members that it cancels.
        first = CallOptions(queue=context.defaults.queue, priority=_MAX_PRIORITY)
        node = self._wiring.add(Context(below(context.path, f"c{number}"), defaults=first))
        node.kind = "cancel"
        node.extra["label"] = self._cancel_scope or context.path
        node.reads.append((Output([member], is_failure=True), None))
        self._wiring.loose.append(node)

    # --- arguments that are results ----------------------------------------------------------

    def _read_arguments(self, node: CompiledNode) -> None:
        """Replace results of other nodes in the arguments; the node reads them when it starts."""
        assert node.call is not None
        call, found = node.call, list[tuple[ArgumentKeys, Any]]()
        if call.condition is not None:
            operands: list[tuple[ArgumentKeys, Any]] = []
            node.extra["when"] = encode_condition(call.condition, operands)
            for keys, source in operands:
                node.reads.append((self._output_of(source, node, keys), keys))
        args = extract([*call.args], ("args",), found)
        kwargs = extract(call.kwargs, ("kwargs",), found)
        if not found:
            return
        node.call = msgspec.structs.replace(call, args=tuple(args), kwargs=kwargs)
        for keys, source in found:
            if source is OPEN:
                continue  # it is read already
            if isinstance(source, Placeholder):  # of a workflow that is only checked
                check_parameter(node.path, call, keys, source)
                node.parameters.append((keys, repr(source)))
                continue
            output = self._output_of(source, node, keys)
            check_edge(node.path, call, keys, output.returns, output.nodes)
            node.reads.append((output, keys))

    def _output_of(self, source: Any, node: CompiledNode, keys: ArgumentKeys) -> Output:
        canvas = source.source if isinstance(source, ResultOf) else source
        if isinstance(canvas, Fork):
            raise ConfigurationError(
                f"node {node.path}: a fork has no result; use that of a signature in it"
            )
        if self._uses.get(id(canvas), 0) > 1:
            raise ConfigurationError(
                f"node {node.path}, argument {argument_name(keys)}: {canvas!r} is used twice in the"
                " canvas, so it has two results; write it twice"
            )
        known = self._outputs.get(id(canvas)) or self._output_of_flat(canvas)
        if known is None:
            self._count(canvas)
            outer, inside = self._owners.get(id(canvas), (self._base, self._inside))
            is_shared = self._count_readers(canvas) > 1
            path = self._named_path(outer if is_shared else numbered(node.path, outer), canvas)
            at = Context(path, defaults=self._defaults, is_aside=node.is_aside, inside=inside)
            known = self._compile(canvas, self._workflow.place, at)
        if isinstance(source, ResultOf) and source.pick:
            return replace(known, pick=source.pick, joins={}, returns=Any)
        return known

    def _count_readers(self, canvas: Any) -> int:
        """Return how many nodes use a result."""
        if not self._readers:
            for one in walk(self._top):
                self._readers.update({id(part) for part in parts_of(one)})
        return self._readers[id(canvas)]

    def _named_path(self, outer: str, canvas: Any) -> str:
        """Return the path of a node that is no part of another: its name, and a number."""
        path = below(outer, short_name(canvas))
        self._names[path] += 1
        return path if self._names[path] == 1 else f"{path}-{self._names[path]}"

    def _output_of_flat(self, canvas: Any) -> Output | None:
        """Return the output of a chain whose parts became parts of another chain."""
        if not isinstance(canvas, Chain) or any(
            self._uses.get(id(part), 0) != 1 for part in canvas.parts
        ):
            return None
        parts = [part for part in canvas.parts if not isinstance(part, Fork)]
        return self._outputs.get(id(parts[-1]))

    def _count(self, canvas: Any) -> None:
        """Count how often each signature is in the canvas."""
        left = [canvas]
        while left:
            one = left.pop()
            self._uses[id(one)] = self._uses.get(id(one), 0) + 1
            self._kept.append(one)
            if isinstance(one, Chain):
                left += one.parts
            elif isinstance(one, Group):
                left += one.members
            elif isinstance(one, Fork):
                left += one.branches
            elif isinstance(one, Map) and isinstance(one.items, Composable):
                left.append(one.items)
            elif isinstance(one, WorkflowCall):
                left.append(one.canvas)
            left += getattr(one, "handlers", ())


def _may_fail(output: Output) -> list[CompiledNode]:
    """Return the nodes whose failure is a failure of this output."""
    collects = output.is_list and output.collect  # then the failures of members are values
    return [*([] if collects else output.nodes), *output.waited_for]


def _after_lane(before: Output | None, lane: CompiledNode) -> Output:
    """Return what a member waits for if the limit of its group lets it run after another one."""
    if before is None:
        return Output(is_no_value=True, lanes=[lane])
    return replace(before, lanes=[*before.lanes, lane], joins={})
