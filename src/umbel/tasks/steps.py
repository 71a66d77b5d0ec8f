"""Durable steps: parts of a task that run once for each job, however often the job runs.

Call ``step(fetch, url)`` in a ``def`` task, ``await step(afetch, url)`` in an ``async def`` task.
The result is kept in the store. When the job runs again, after a retry, an interruption, the death
of its worker or a deployment, the kept result is returned and the function is not called.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from umbel.errors import ConfigurationError
from umbel.messages import derived_id
from umbel.tasks.current import running
from umbel.tasks.policies import storable_name

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

_MAX_NAME_LENGTH = 255


class StepCall(msgspec.Struct, frozen=True):
    """A step as the task calls it."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    transactional: bool = False
    connection: Any = None
    """The caller's connection with an open transaction. None: a transactional step opens one."""
    threaded: bool = False
    """Whether the step is awaited although its function is a plain one."""


class StepRunner(Protocol):
    """Runs the steps of one run of a job, or returns their kept results."""

    def begin(self, call: StepCall) -> Any:
        """Return the step's result; in an event loop, a coroutine of it."""


class StepPosition:
    """The number and name of a step in its job, and how many messages it has published."""

    __slots__ = ("_published", "connection", "job", "name", "number")

    def __init__(self, job: str, number: int, name: str) -> None:
        self.job = job
        self.number = number
        self.name = name
        self.connection: Any = None
        """The connection in whose transaction it runs."""
        self._published = 0

    def next_id(self) -> str:
        """Return the id of its next message; a repeated step gets the same ids, so none is new."""
        self._published += 1
        return derived_id(self.job, self.number, self._published)


current_step: ContextVar[StepPosition | None] = ContextVar("umbel_step", default=None)
"""The step in which this code runs, if any."""


@contextmanager
def enter_step(position: StepPosition) -> Iterator[None]:
    """Set ``current_step`` while the step's function runs."""
    token = current_step.set(position)
    try:
        yield
    finally:
        current_step.reset(token)


class Transactional(Generic[C]):
    """Steps in the caller's transaction: ``step.using(session).transaction(save, row)``."""

    __slots__ = ("_connection", "_name")

    def __init__(self, name: str | None, connection: C) -> None:
        self._name = name
        self._connection = connection

    @overload
    def transaction(
        self,
        function: Callable[Concatenate[C, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def transaction(
        self, function: Callable[Concatenate[C, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    def transaction(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the function with the connection first; the step is kept in the same transaction.

        It is kept if the caller commits, and not if the caller rolls back. Commit soon: until then
        the job is locked for all others.

        Raises:
            ConfigurationError: the connection is not to the store, or has no open transaction.
        """
        name = self._name or _name_of(function)
        return _begin(StepCall(name, function, args, kwargs, True, self._connection))


class Step:
    """Calls parts of a task that run once for each job. ``from umbel import step``."""

    __slots__ = ("_name",)

    def __init__(self, name: str | None = None) -> None:
        self._name = name

    @overload
    def __call__(
        self,
        function: Callable[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Return the function's result: kept on the first call, returned on every other.

        Outside a job it is a plain call. If the function raises, nothing is kept and the error is
        raised.

        Raises:
            StepsChanged: the job has kept another step under this number; the job is buried.
            NotEncodable, MessageTooLarge: the result cannot be kept; the text names the step.
        """
        return _begin(StepCall(self._name or _name_of(function), function, args, kwargs))

    def threaded(
        self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """``await step(function)`` of a plain function in an ``async def`` task: runs in a thread.

        For type checkers, which cannot know that ``step(function)`` is awaitable there."""
        name = self._name or _name_of(function)
        begun: Coroutine[Any, Any, R] = _begin(
            StepCall(name, function, args, kwargs, threaded=True)
        )
        return begun

    @overload
    def transaction(
        self,
        function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def transaction(
        self, function: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    def transaction(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the function with a connection to the store's own database first.

        Its changes and the step are committed together, exactly once. Messages that it publishes
        are part of the transaction.

        Raises:
            ConfigurationError: the store has no transactions, or this worker cannot reach it.
        """
        return _begin(StepCall(self._name or _name_of(function), function, args, kwargs, True))

    def named(self, name: str) -> Step:
        """Return a step with this name: ``step.named("page 7")(fetch, url)``.

        Raises:
            ConfigurationError: stores cannot keep the name.
        """
        if not storable_name(name):
            raise ConfigurationError(f"step name={name!r}: give 1 to 255 characters")
        return Step(name)

    def using(self, connection: C) -> Transactional[C]:
        """Return steps in an open transaction of the caller: of psycopg, sqlite3 or SQLAlchemy."""
        return Transactional(self._name, connection)


step = Step()


def _begin(call: StepCall) -> Any:
    run = running.get()
    runner = run.steps if run is not None else None
    if runner is not None:
        return runner.begin(call)
    if call.transactional and call.connection is None:
        raise ConfigurationError(
            f"step.transaction({call.name}): no job runs here, so there is no store to connect to;"
            " call it in a task that a worker runs, or pass a connection: step.using(connection)"
        )
    lead = (call.connection,) if call.transactional else ()
    result = call.function(*lead, *call.args, **call.kwargs)
    return _as_coroutine(result) if call.threaded else result


async def _as_coroutine(value: Any) -> Any:
    return value


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop in which the caller runs: it can await, and must not block."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def await_if_coroutine(value: Any) -> Any:
    """Return a function's result; await it if it is a coroutine."""
    return await value if inspect.iscoroutine(value) else value


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return name[-_MAX_NAME_LENGTH:]
