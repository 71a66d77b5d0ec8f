"""Workflows: canvases that are declared once, checked, and started with arguments."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack

import msgspec

from umbel.errors import BadArguments, ConfigurationError
from umbel.tasks.canvas import Chain, Fork, Group, Map, group
from umbel.tasks.composing import (
    CanvasChanges,
    CanvasMethods,
    Composable,
    ResultOf,
    check_canvas_options,
)
from umbel.tasks.conditions import Condition, Placeholder, pick_item
from umbel.tasks.handle import Handle
from umbel.tasks.options import CallOptions
from umbel.tasks.parameters import Parameters
from umbel.tasks.task import Signature
from umbel.tasks.tracing import note_made, note_replaced, trace
from umbel.tasks.waiting_nodes import NOTHING, Signal, Waiting, check_seconds

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_MAX_ACTIVE_RUNS = 1_000
"""Their ids are in one entry of coordination."""


class Workflow(Generic[P, R_co]):
    """A declared workflow: ``fulfil.delay(order)`` starts it, ``fulfil.draw()`` draws it."""

    def __init__(
        self,
        function: Callable[P, Composable[R_co]],
        name: str,
        *,
        deadline: float | None = None,
        compensate: bool = True,
        limit: int | None = None,
    ) -> None:
        if deadline is not None:
            check_seconds("deadline", deadline)
        if limit is not None and (type(limit) is not int or not 0 < limit <= _MAX_ACTIVE_RUNS):
            raise ConfigurationError(
                f"limit={limit!r:.80} of workflow {name}: give how many runs may be active at once,"
                f" 1 to {_MAX_ACTIVE_RUNS:,}; for more, give its tasks a limit"
            )
        self.function = function
        self.name = name
        self.deadline = deadline
        self.compensate = compensate
        """Whether a cancelled run is undone, too."""
        self.limit = limit
        """How many runs are active at once; None for no limit."""
        self.parameters = Parameters(function, name)
        self.version = ""
        """Changes whenever the declared graph changes."""
        self.call_options = CallOptions()
        self.canvas = _traced(function, self.parameters, name)
        self.shape: Any = None
        """The declared graph: see ``umbel.graphs.Graph``."""
        self.draws: Callable[[Any], str] | None = None
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__

    def draw(self) -> str:
        """Return the declared workflow as a Mermaid flowchart. Raise ConfigurationError."""
        if self.draws is None:
            raise ConfigurationError(
                f"workflow {self.name} belongs to no app yet: app.include(...)"
            )
        return self.draws(self.shape)

    def options(self, **changes: Unpack[CanvasChanges]) -> Workflow[P, R_co]:
        """Return this workflow with options for its runs: delay, unique, id, queue and others."""
        check_canvas_options(changes)
        changed = copy.copy(self)
        changed.call_options = self.call_options.merged(dict(changes))
        return changed

    def s(self, *args: P.args, **kwargs: P.kwargs) -> WorkflowCall[R_co]:
        """Return a run as a value: to start it later, or as a node of another workflow."""
        return note_made(WorkflowCall(self, args, kwargs))

    def si(self, *args: P.args, **kwargs: P.kwargs) -> WorkflowCall[R_co]:
        """Like ``s``, but ignore the result of the node before it in a chain."""
        call = WorkflowCall(self, args, kwargs)
        call.immutable = True
        return note_made(call)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """Start it from sync code; it is durable when this returns. Return its handle."""
        return self.s(*args, **kwargs).delay()

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """``delay`` for async code."""
        return await self.s(*args, **kwargs).adelay()

    def __repr__(self) -> str:
        return f"<workflow {self.name} {self.version}>"


class WorkflowDecorator(Protocol):
    """The type of ``@app.workflow(...)``: it keeps the function's parameter and result types."""

    def __call__(self, function: Callable[P, Composable[R]], /) -> Workflow[P, R]: ...


class WorkflowCall(CanvasMethods[R_co]):
    """A call of a workflow. Compiling it puts the arguments in place of its parameters."""

    __slots__ = ("args", "canvas", "immutable", "kwargs", "workflow")

    def __init__(
        self, workflow: Workflow[..., R_co], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._set_up()
        workflow.parameters.check(args, kwargs)
        self.workflow = workflow
        self.immutable = False
        """Whether its tasks ignore the result of the node before it."""
        self.args, self.kwargs = args, kwargs
        self.call_options = workflow.call_options
        bound = workflow.parameters.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        self.canvas: Composable[Any] = bind(workflow.canvas, bound.arguments)

    def inner(self) -> Sequence[Any]:
        return (self.canvas,)

    def _copied(self) -> Any:
        copied = super()._copied()
        note_replaced(self, copied)
        return copied

    def own(self) -> Iterable[Any]:
        """Return what it consists of, without the nodes to which its arguments refer."""
        return walk(self.canvas, _symbols([self.args, self.kwargs]))

    def __repr__(self) -> str:
        return f"workflow {self.workflow.name}"


def _traced(function: Callable[..., Any], parameters: Parameters, name: str) -> Composable[Any]:
    """Return what the function builds from placeholders. Raise ConfigurationError."""
    for parameter in parameters.signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigurationError(
                f"workflow {name}: *args and **kwargs cannot be parameters; name each"
                " one, or take a list"
            )
    placeholders = {
        one: Placeholder(one, parameters.annotation(one)) for one in parameters.signature.parameters
    }
    with trace() as made:
        try:
            returned = function(**placeholders)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"workflow {name}{_line_of(function, error)}: {error}"
            ) from None
        except (TypeError, AttributeError, ValueError, LookupError) as error:
            raise ConfigurationError(
                f"workflow {name}{_line_of(function, error)}: {type(error).__name__}: {error}"
            ) from error
    if inspect.iscoroutine(returned):
        returned.close()
        raise ConfigurationError(f"workflow {name}: write it as def; it is called once, and builds")
    if isinstance(returned, list | tuple) and all(isinstance(one, Composable) for one in returned):
        returned = group(*returned)
    if not isinstance(returned, Composable):
        raise ConfigurationError(
            f"workflow {name} returned {returned!r:.80}: return the node with its result, such as"
            " ship.s(order)"
        )
    used = {id(one) for one in walk(returned)}
    unused = [one for key, one in made.items() if key not in used]
    if unused:
        raise ConfigurationError(
            f"workflow {name}: {unused[0]!r} is never used; return it, use its result, or add"
            " .after(...) to the node that follows it"
        )
    return returned


def _line_of(function: Callable[..., Any], error: BaseException) -> str:
    """Return the line of the function at which an error was raised."""
    code, trace_back, line = getattr(function, "__code__", None), error.__traceback__, 0
    while trace_back is not None:
        if trace_back.tb_frame.f_code is code:
            line = trace_back.tb_lineno
        trace_back = trace_back.tb_next
    return f", line {line}" if line else ""


def parts_of(node: Any) -> list[Any]:
    """Return what a canvas consists of, and what its arguments and conditions refer to."""
    found: list[Any] = []
    if isinstance(node, Signature):
        found += _symbols([node.args, node.kwargs])
        found += [*node.before, *_symbols(node.condition)]
        found += [node.undo] if node.undo is not None else []
    elif isinstance(node, Chain):
        found += node.parts
    elif isinstance(node, Group):
        found += node.members
    elif isinstance(node, Fork):
        found += node.branches
    elif isinstance(node, Map):
        found += [node.signature, *_symbols(node.items)]
    elif isinstance(node, Waiting):
        found += node.before
    elif isinstance(node, WorkflowCall):
        found += [node.canvas, *_symbols([node.args, node.kwargs])]
    return [*found, *getattr(node, "handlers", ())]


def walk(canvas: Any, without: Iterable[Any] = ()) -> Iterable[Any]:
    """Return a canvas and everything in it, each once, but not what these consist of."""
    seen = {id(one) for one in without}
    left = [canvas]
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            left += parts_of(one)


def _symbols(value: Any) -> list[Any]:
    """Return the nodes to which a value refers."""
    if isinstance(value, ResultOf):
        return [value.source]
    if isinstance(value, Composable):
        return [value]
    if isinstance(value, Condition):
        return [node for one in value.operands for node in _symbols(one)]
    if type(value) in (list, tuple):
        return [node for one in value for node in _symbols(one)]
    if type(value) is dict:
        return [node for one in value.values() for node in _symbols(one)]
    return []


def bind(canvas: Composable[Any], values: Mapping[str, Any]) -> Composable[Any]:
    """Return a canvas with these values in place of the parameters.

    Raises:
        ConfigurationError: a node waits for itself.
    """
    binding = _Binding(values)
    for node in _inner_first(canvas):  # so that it finds the copies of what it refers to
        binding.node(node)
    return binding.node(canvas)  # type: ignore[no-any-return]


def _inner_first(canvas: Any) -> Iterable[Any]:
    """Return a canvas and everything in it, each after what it consists of and refers to."""
    done: set[int] = set()
    opened = {id(canvas)}
    left = [(canvas, iter(parts_of(canvas)))]
    while left:  # not by recursion: a workflow may have thousands of nodes in sequence
        node, parts = left[-1]
        part = next((one for one in parts if id(one) not in done), NOTHING)
        if part is NOTHING:
            left.pop()
            opened.discard(id(node))
            done.add(id(node))
            yield node
        elif id(part) in opened:
            raise ConfigurationError(
                f"{node!r} waits for {part!r}, which waits for it; remove one of the two from the"
                " arguments of the other"
            )
        else:
            opened.add(id(part))
            left.append((part, iter(parts_of(part))))


class _Binding:
    """Copies a canvas. A node that is used twice is still one node in the copy."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._copies: dict[int, Any] = {}

    def node(self, node: Any) -> Any:
        known = self._copies.get(id(node))
        if known is None:
            known = self._copy(node)
            self._copies[id(node)] = known
        return known

    def _copy(self, node: Any) -> Any:
        if isinstance(node, Signature):
            return msgspec.structs.replace(
                node,
                args=tuple(self.value(one) for one in node.args),
                kwargs={name: self.value(one) for name, one in node.kwargs.items()},
                before=self._all(node.before),
                condition=self.value(node.condition),
                undo=None if node.undo is None else self.node(node.undo),
                handlers=self._all(node.handlers),
            )
        copied = node._copied()
        copied.handlers = self._all(node.handlers)
        if isinstance(node, Chain):
            copied.parts = self._all(node.parts)
        elif isinstance(node, Group):
            copied.members = self._all(node.members)
        elif isinstance(node, Fork):
            copied.branches = self._all(node.branches)
        elif isinstance(node, Map):
            copied.signature, copied.items = self.node(node.signature), self.value(node.items)
            copied.items = _items(copied.items)
        elif isinstance(node, Waiting):
            copied.before = self._all(node.before)
            if isinstance(node, Signal):
                copied.default = self.value(node.default)
        elif isinstance(node, WorkflowCall):
            copied.args = tuple(self.value(one) for one in node.args)
            copied.kwargs = {name: self.value(one) for name, one in node.kwargs.items()}
            copied.canvas = self.node(node.canvas)
        return copied

    def _all(self, nodes: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(self.node(one) for one in nodes)

    def value(self, value: Any) -> Any:
        if isinstance(value, Placeholder):
            return self._parameter(value)
        if isinstance(value, ResultOf):
            return ResultOf(self.node(value.source), value.pick)
        if isinstance(value, Composable):
            return self.node(value)
        if isinstance(value, Condition):
            return Condition(value.operator, *(self.value(one) for one in value.operands))
        if type(value) is dict:
            return {key: self.value(one) for key, one in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.value(one) for one in value)
        return value

    def _parameter(self, placeholder: Placeholder) -> Any:
        if placeholder.name not in self._values:
            return placeholder  # of a workflow that contains this one
        value = self._values[placeholder.name]
        if not placeholder.pick:
            return value
        if isinstance(value, Placeholder):
            return Placeholder(value.name, Any, (*value.pick, *placeholder.pick))
        if isinstance(value, Composable):
            value = ResultOf(value)
        if isinstance(value, ResultOf):
            return ResultOf(value.source, (*value.pick, *placeholder.pick))
        try:
            return pick_item(value, placeholder.pick)
        except (LookupError, TypeError):
            raise BadArguments(
                f"{placeholder!r}: the argument {value!r:.80} has no such item"
            ) from None


def _items(value: Any) -> Any:
    """Return the items of a map. Raise BadArguments if an argument is no list."""
    if value is None or isinstance(value, Composable | ResultOf | Placeholder | list):
        return value
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        return [*value]
    raise BadArguments(f"map over {value!r:.80}: give a list of items")
