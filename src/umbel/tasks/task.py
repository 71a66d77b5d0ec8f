"""Tasks and their signatures. ``Task[P, R]`` carries the function's own types to ``delay``."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from functools import update_wrapper
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import msgspec

from umbel.errors import BadArguments, ConfigurationError, NodeFailed, NotEncodable
from umbel.messages import Growth, Policy, route_gate
from umbel.tasks.composing import (
    OPEN,
    Composable,
    check_handler,
    check_nodes,
    contains_results,
)
from umbel.tasks.conditions import Condition
from umbel.tasks.gates import GateSet, Limit, Pool, Rate, Token, token_of
from umbel.tasks.handle import Handle
from umbel.tasks.options import CallOptions, Loop, Publishing, TaskOptions, Track
from umbel.tasks.parameters import Parameters
from umbel.tasks.policies import Retry, Unique, storable_name
from umbel.tasks.tracing import note_made, note_replaced, tracing

if TYPE_CHECKING:
    from umbel.tasks.canvas import Map
    from umbel.tasks.current import Run

P = ParamSpec("P")
Q = ParamSpec("Q")
S = TypeVar("S")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

AS_DECLARED = CallOptions()
NO_GATES = GateSet("")
_PLAIN_TYPES = frozenset({int, float, str, bool, bytes, dict, list, tuple, type(None)})
_NO_QUEUE_GATES: Mapping[str, GateSet] = {}


class Declaration(TypedDict, total=False):
    """The keyword options of ``@task(...)``; TaskOptions explains each."""

    queue: str
    priority: int
    delay: float | None
    expires: float | datetime | None
    timeout: float | None
    retry: Retry | int
    unique: bool | str | Unique | Callable[..., str]
    interruptible: bool
    publishing: Publishing | None
    dedupe: Callable[..., Any] | None
    track: Track | str
    keep: float | None
    loop: Loop
    limit: int | Limit | Sequence[int | Limit]
    rate: str | Rate | Sequence[str | Rate]
    pool: Pool | Sequence[Pool]
    affinity: Token
    only_if_routed: bool
    broadcast: bool | float
    max_deaths: int
    cron: str
    every: float
    zone: str
    overlap: Literal["skip", "queue", "allow"]
    catch_up: Literal["none", "last", "all"]
    jitter: int


class Changes(TypedDict, total=False):
    """The keyword options of ``task.options(...)``; CallOptions explains each."""

    queue: str
    priority: int
    delay: float
    not_before: datetime
    expires: float | datetime
    timeout: float
    retry: Retry | int
    unique: str | Unique
    track: Track | str
    keep: float
    affinity: str
    stay: bool
    worker: int | str
    connection: Any
    id: str


class Sender(Protocol):
    """Publishes the calls of tasks, from sync and from async code."""

    def send_canvas(self, canvas: Composable[Any], first: Sequence[Any]) -> Handle[Any]:
        """Publish a graph, all or none of it. Return the handle of the whole."""

    async def asend_canvas(self, canvas: Composable[Any], first: Sequence[Any]) -> Handle[Any]:
        """``send_canvas`` for async code."""

    def grow(self, canvas: Composable[Any], run: Run) -> Growth:
        """Return the jobs of a canvas that replaces the job that runs."""

    def send(self, signatures: Sequence[Signature[Any]]) -> list[Handle[Any]]:
        """Publish all in one round trip; return when they are durable."""

    async def asend(self, signatures: Sequence[Signature[Any]]) -> list[Handle[Any]]:
        """``send`` for async code."""


class Signature(msgspec.Struct, Composable[R_co], frozen=True, eq=False):
    """A call as a value: task, arguments, options. Two signatures are equal if they are one."""

    task: Task[..., R_co]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    call_options: CallOptions = AS_DECLARED
    immutable: bool = False
    """Whether it ignores the result of the previous task in a chain."""
    is_open: bool = False
    """Whether its first argument is missing: the node before it gives it."""
    handlers: tuple[Composable[Any], ...] = ()
    is_canvas: bool = False
    """Whether it has handlers, or arguments that are results of other nodes."""
    before: tuple[Composable[Any], ...] = ()
    """Nodes that it waits for without using their results."""
    condition: Condition | None = None
    """The condition under which it runs."""
    undo: Signature[Any] | None = None
    """What takes back its effect if the workflow fails later."""

    def delay(self, *first: Any) -> Handle[R_co]:
        """Publish it from sync code. ``first`` are arguments that go before the others."""
        if first or self.is_canvas:
            return self.task.sender.send_canvas(self, first)
        try:
            return self.task.sender.send([self])[0]
        except NotEncodable:
            if not contains_results((self.args, self.kwargs)):
                raise
        return self.task.sender.send_canvas(self, ())

    async def adelay(self, *first: Any) -> Handle[R_co]:
        """Publish it from async code."""
        if first or self.is_canvas:
            return await self.task.sender.asend_canvas(self, first)
        try:
            return (await self.task.sender.asend([self]))[0]
        except NotEncodable:
            if not contains_results((self.args, self.kwargs)):
                raise
        return await self.task.sender.asend_canvas(self, ())

    def options(self, **changes: Unpack[Changes]) -> Signature[R_co]:
        """Return this call with other options: ``add.s(1, 2).options(priority=9)``."""
        merged = self.call_options.merged(dict(changes))
        changed = msgspec.structs.replace(self, call_options=merged)
        note_replaced(self, changed)
        return changed

    def on_error(self, handler: Composable[Any]) -> Signature[R_co]:
        """Run ``handler(failure)`` once if this call has failed permanently."""
        check_handler(handler)
        return self._changed(handlers=(*self.handlers, handler))

    def after(self, *nodes: Composable[Any]) -> Signature[R_co]:
        """Wait for these nodes, too. It does not run if one fails; it does if one is skipped."""
        check_nodes("after", nodes)
        return self._changed(before=(*self.before, *nodes))

    def when(self, condition: Any) -> Signature[R_co]:
        """Run only under this condition: ``ship.s(order).when(paid.result > 0)``.

        Otherwise it is skipped, and gives None. A node of which all arguments are results of
        skipped nodes is skipped, too.

        Raises:
            ConfigurationError: it is not a comparison of parameters and results.
        """
        if not isinstance(condition, Condition):
            raise ConfigurationError(
                f"when({condition!r:.80}): give a comparison of parameters of the workflow or"
                " results of nodes, as in order['total'] > 100 or node.result == 'yes'; a"
                " lambda cannot be stored"
            )
        if self.condition is not None:
            condition = self.condition & condition
        return self._changed(condition=condition)

    def compensate(self, undo: Signature[Any]) -> Signature[R_co]:
        """Take back the effect of this node if the workflow fails later: ``undo(result)``.

        The undos of nodes that have succeeded run in the reverse order, after all nodes have
        ended.
        """
        if not isinstance(undo, Signature):
            raise ConfigurationError(f"compensate({undo!r:.80}): give a signature: refund.s()")
        if undo.before or undo.handlers or undo.condition is not None or undo.undo is not None:
            raise ConfigurationError(
                f"compensate({undo!r:.80}): an undo has no after, when, on_error and compensate"
            )
        return self._changed(undo=undo)

    def _changed(self, **changes: Any) -> Signature[R_co]:
        changed = msgspec.structs.replace(self, is_canvas=True, **changes)
        note_replaced(self, changed)
        return changed

    def inner(self) -> Sequence[Any]:
        return ()

    def __repr__(self) -> str:
        return f"{self.task.name}.{'si' if self.immutable else 's'}(...)"

    def unique(self) -> Unique | None:
        """Return its unique key, if any."""
        chosen = self.call_options.unique
        if chosen is None:
            declared = self.task.declared.unique
            if callable(declared):
                declared = declared(*self.args, **self.kwargs)
            chosen = self.task.name if declared is True else declared or None
        return chosen if isinstance(chosen, Unique) or chosen is None else Unique(chosen)


class Task(Generic[P, R_co]):
    """A function that workers run: call ``delay`` from sync code, ``adelay`` from async code."""

    kind: str
    """Which slots of a worker it uses: ``io`` (coroutines) or ``cpu`` (threads)."""

    def __init__(self, function: Callable[P, Any], name: str, declared: TaskOptions) -> None:
        self.function = function
        self.name = name
        self.parameters = Parameters(function, name)
        self.declare_options(declared)
        self.call_options = AS_DECLARED
        """The options of its calls: see ``options``."""
        self._sender: Sender | None = None
        self._queue_gates: Mapping[str, GateSet] = _NO_QUEUE_GATES
        self.fan_out_task: IOTask[..., Any] | None = None
        """Of a broadcast: the task that runs first, and publishes this one to every worker."""
        update_wrapper(self, function)  # type: ignore[arg-type]  # subclasses are callable

    def declare_options(self, declared: TaskOptions) -> None:
        """Use these options. Raise ConfigurationError if one names an argument that is missing."""
        counted: list[Limit | Rate] = [*declared.limit, *declared.rate]
        _check_tokens(self.parameters, [one.token for one in counted])
        _check_tokens(self.parameters, [declared.affinity], "affinity")
        self.declared = declared
        self.gate_set = GateSet(self.name, declared.limit, declared.rate, declared.pool)

    @overload
    def s(self, *args: P.args, **kwargs: P.kwargs) -> Signature[R_co]: ...
    @overload
    def s(
        self: Task[Concatenate[Any, Q], S], *args: Q.args, **kwargs: Q.kwargs
    ) -> Signature[S]: ...
    def s(self, *args: Any, **kwargs: Any) -> Any:
        """Return the call as a value, to publish later, in bulk, or in a canvas.

        In a chain, the result of the node before it goes before the arguments. So the first
        parameter may be left open. Raise BadArguments.
        """
        return self._signature(args, kwargs)

    def si(self, *args: P.args, **kwargs: P.kwargs) -> Signature[R_co]:
        """Like ``s``, but ignore the result of the previous task in a chain. Raise BadArguments."""
        return self._call(args, kwargs, immutable=True)

    @overload
    def map(
        self, items: Any = None, *, errors: Literal["collect"], limit: int | None = None
    ) -> Map[list[R_co | NodeFailed]]: ...
    @overload
    def map(
        self, items: Any = None, *, errors: Policy = "fail", limit: int | None = None
    ) -> Map[list[R_co]]: ...
    def map(self, items: Any = None, *, errors: Policy = "fail", limit: int | None = None) -> Any:
        """Run it once for each item of a list, in parallel; the result is the list of results.

        ``items`` is a list, or a canvas with a list as its result. In a chain, without ``items``,
        it is the result of the node before it.
        """
        from umbel.tasks.canvas import Map, task_signature

        return Map(task_signature(self), items, errors=errors, limit=limit)

    @overload
    def starmap(
        self, items: Any = None, *, errors: Literal["collect"], limit: int | None = None
    ) -> Map[list[R_co | NodeFailed]]: ...
    @overload
    def starmap(
        self, items: Any = None, *, errors: Policy = "fail", limit: int | None = None
    ) -> Map[list[R_co]]: ...
    def starmap(
        self, items: Any = None, *, errors: Policy = "fail", limit: int | None = None
    ) -> Any:
        """Like ``map``; each item is a tuple with the arguments of a call."""
        from umbel.tasks.canvas import Map, task_signature

        return Map(task_signature(self), items, star=True, errors=errors, limit=limit)

    def _signature(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature[R_co]:
        """Return a call of which the first argument may be missing."""
        try:
            return self._call(args, kwargs)
        except BadArguments as error:
            try:
                self.parameters.check((OPEN, *args), kwargs)
            except BadArguments:
                raise error from None
            is_canvas = _has_nodes(args, kwargs)
            made: Signature[R_co] = Signature(
                self, args, kwargs, self.call_options, is_open=True, is_canvas=is_canvas
            )
            return note_made(made)

    def _call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, immutable: bool = False
    ) -> Signature[R_co]:
        """Return a complete call. Raise BadArguments."""
        self.parameters.check(args, kwargs)
        is_canvas = _has_nodes(args, kwargs)
        # Without keywords, this takes half as long.
        made: Signature[R_co] = Signature(
            self, args, kwargs, self.call_options, immutable, False, (), is_canvas
        )
        return made if tracing.get() is None else note_made(made)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """Publish from sync code; durable when it returns.

        Raises:
            BadArguments, NotEncodable, MessageTooLarge: the call cannot become a message.
            DuplicateJob: a live job holds the unique key. Unavailable: the broker did not answer.
        """
        return self._call(args, kwargs).delay()

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """``delay`` for async code."""
        return await self._call(args, kwargs).adelay()

    def options(self, **changes: Unpack[Changes]) -> Task[P, R_co]:
        """Return this task with options for its calls: ``add.options(delay=30).delay(1, 2)``."""
        changed = copy.copy(self)
        changed.call_options = self.call_options.merged(dict(changes))
        return changed

    def bind(self, sender: Sender, queue_gates: Mapping[str, GateSet] = _NO_QUEUE_GATES) -> None:
        """Publish calls through this sender. Called once, by ``app.task`` or ``app.include``."""
        self._sender = sender
        self._queue_gates = queue_gates

    def gates(self, queue: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the gates of a call in a queue. Raise what a token's function raises.

        The route comes last: behind it, the job belongs to one worker.
        """
        gate_set, affinity = self.gate_set, self.declared.affinity
        if self._queue_gates:
            gate_set += self._queue_gates.get(queue, NO_GATES)
        gates = gate_set.keys(self.parameters, args, kwargs) if gate_set else ()
        if affinity is not None:
            gates += (route_gate(token_of(affinity, self.parameters, args, kwargs)),)
        return gates

    def has_tokens(self, queue: str) -> bool:
        """Whether its gates in a queue depend on the arguments of a call."""
        gate_set = self.gate_set + self._queue_gates.get(queue, NO_GATES)
        return self.declared.affinity is not None or gate_set.has_tokens

    @property
    def sender(self) -> Sender:
        """The sender of its calls. Raise ConfigurationError if no app has included the task."""
        if self._sender is None:
            raise ConfigurationError(
                f"task {self.name} belongs to no app yet: app.include({self.function.__module__})"
            )
        return self._sender

    def is_bound_to(self, sender: Sender) -> bool:
        """Whether this sender publishes its calls, to the same application and store."""
        return self._sender is sender

    def __repr__(self) -> str:
        return f"<task {self.name}>"


def _has_nodes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is the result of another node.

    Results in lists and dicts are found when a call cannot be encoded, so that ordinary calls do
    not pay for the search.
    """
    for value in (*args, *kwargs.values()) if kwargs else args:
        if type(value) not in _PLAIN_TYPES and hasattr(value, "stands_for_result"):
            return True
    return False


def _check_tokens(
    parameters: Parameters, tokens: Sequence[Token | None], field: str = "token"
) -> None:
    for token in tokens:
        if isinstance(token, str) and token not in parameters.signature.parameters:
            known = ", ".join(parameters.signature.parameters) or "none"
            raise ConfigurationError(
                f"{field}={token!r}: {parameters.task} has no such argument; it has {known}"
            )


class IOTask(Task[P, R]):
    """An ``async def`` task: a coroutine in the worker's event loop."""

    kind = "io"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run it here: a plain call of the coroutine function."""
        made: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return made


class CPUTask(Task[P, R]):
    """A ``def`` task: runs in one of the worker's threads."""

    kind = "cpu"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it here: a plain call of the function."""
        result: R = self.function(*args, **kwargs)
        return result


class Decorator(Protocol):
    """The type of ``@task(...)``: it keeps the function's parameter and return types."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is the closer match
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> IOTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> CPUTask[P, R]: ...


def declare(
    function: Callable[..., Any], name: str | None, options: TaskOptions
) -> IOTask[..., Any] | CPUTask[..., Any]:
    """Return a task of a function. Raise ConfigurationError if it cannot be a task."""
    if isinstance(function, str):
        raise ConfigurationError(f"{function!r}: a task is a function; write name={function!r}")
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(f"{function!r}: a task is a function, def or async def")
    if not hasattr(function, "__qualname__") and not name:
        raise ConfigurationError(f"{function!r} has no name; give name=...")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{function.__qualname__}: a generator cannot be a task")
    name = name or f"{module_name(function)}.{function.__qualname__}"
    if not storable_name(name):
        raise ConfigurationError(f"name={name!r}: give a task name of 1 to 255 characters")
    if inspect.iscoroutinefunction(function):
        return IOTask(function, name, options)
    if inspect.iscoroutinefunction(options.dedupe):
        raise ConfigurationError(f"{name}: dedupe of a def task must be a plain function")
    if options.loop == "trio":
        raise ConfigurationError(f'{name}: loop="trio" is for async def tasks')
    return CPUTask(function, name, options)


@overload
def task(  # type: ignore[overload-overlap]  # a coroutine function is the closer match
    function: Callable[P, Coroutine[Any, Any, R]], /
) -> IOTask[P, R]: ...
@overload
def task(function: Callable[P, R], /) -> CPUTask[P, R]: ...
@overload
def task(*, name: str | None = None, **declaration: Unpack[Declaration]) -> Decorator: ...
def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    **declaration: Unpack[Declaration],
) -> Any:
    """Declare a task that belongs to no app yet; ``app.include(module)`` binds it."""
    options = TaskOptions.from_declaration(declaration)
    if function is not None:
        return declare(function, name, options)
    return lambda function: declare(function, name, options)


def module_name(function: Callable[..., Any]) -> str:
    """Return the name by which a worker imports the module, also of a script (``__main__``)."""
    if function.__module__ != "__main__":
        return function.__module__
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return str(spec.name).removesuffix(".__main__")
    return Path(getattr(main, "__file__", None) or "main").stem
