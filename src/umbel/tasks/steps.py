"""Durable steps: parts of a task that run once for each job, however often the job does.

``step(fetch, url)`` in a ``def`` task, ``await step(afetch, url)`` in an ``async def`` one. The
result is kept in the store; when the job runs again, after a retry, an interruption, a death, a
deployment, it is returned and the function is not called.
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

_LONGEST_NAME = 255


class StepCall(msgspec.Struct, frozen=True):
    """A step as the task calls it."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    transactional: bool = False
    connection: Any = None
    """The caller's own, with a transaction open; None: one of ours, if it is transactional."""
    threaded: bool = False
    """Whether it is awaited although its function is a plain one."""


class StepKeeper(Protocol):
    """One run's steps: who calls them in order, and gets what was kept, or has them done."""

    def begin(self, call: StepCall) -> Any:
        """The step's result; in an event loop an awaitable of it."""


class StepPlace:
    """Where a step stands in its job, and what it has published so far."""

    __slots__ = ("_published", "connection", "job", "name", "number")

    def __init__(self, job: str, number: int, name: str) -> None:
        self.job = job
        self.number = number
        self.name = name
        self.connection: Any = None
        """In whose transaction it runs."""
        self._published = 0

    def next_id(self) -> str:
        """The id of what it publishes next: the same when it is repeated, so that is no second."""
        self._published += 1
        return derived_id(self.job, self.number, self._published)


inside: ContextVar[StepPlace | None] = ContextVar("umbel_step", default=None)
"""The step in which this code runs."""


@contextmanager
def entered(place: StepPlace) -> Iterator[None]:
    """For as long as the step's own function runs."""
    token = inside.set(place)
    try:
        yield
    finally:
        inside.reset(token)


class Transactional(Generic[C]):
    """Steps in a transaction of the caller's: ``step.using(session).transaction(save, row)``."""

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

        It is kept when the caller commits, and not when the caller rolls back. Commit soon: until
        then nobody else can change the job.

        Raises:
            ConfigurationError: it is no connection to the store, or has no transaction open.
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
        """The function's result, kept on the first call and returned on every other.

        Outside a job it is a plain call. A failing function keeps nothing; what it raises goes up.

        Raises:
            StepsChanged: the job has kept another step in this place; the job is buried.
            NotEncodable, MessageTooLarge: the result cannot be kept; the text names the step.
        """
        return _begin(StepCall(self._name or _name_of(function), function, args, kwargs))

    def threaded(
        self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """``await step(function)`` of a plain function, for type checkers that cannot know where
        it is called: in an ``async def`` task, where it runs in a thread."""
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

        What it does there and the step are committed together, exactly once. What it publishes
        meanwhile is part of the transaction.

        Raises:
            ConfigurationError: the store has no transactions, or this worker no way to it.
        """
        return _begin(StepCall(self._name or _name_of(function), function, args, kwargs, True))

    def named(self, name: str) -> Step:
        """With a name of its own: ``step.named("page 7")(fetch, url)``.

        Raises:
            ConfigurationError: no name that can be kept.
        """
        if not storable_name(name):
            raise ConfigurationError(f"step name={name!r}: give 1 to 255 characters")
        return Step(name)

    def using(self, connection: C) -> Transactional[C]:
        """In a transaction that the caller has open: psycopg's, sqlite3's or SQLAlchemy's."""
        return Transactional(self._name, connection)


step = Step()


def _begin(call: StepCall) -> Any:
    run = running.get()
    keeper = run.steps if run is not None else None
    if keeper is not None:
        return keeper.begin(call)
    if call.transactional and call.connection is None:
        raise ConfigurationError(
            f"step.transaction({call.name}): no job runs here, so there is no store to connect to;"
            " call it in a task that a worker runs, or bring a connection: step.using(connection)"
        )
    lead = (call.connection,) if call.transactional else ()
    result = call.function(*lead, *call.args, **call.kwargs)
    return _given(result) if call.threaded else result


async def _given(value: Any) -> Any:
    return value


def in_event_loop() -> bool:
    """Whether whoever calls can await, and must not block."""
    return asyncio._get_running_loop() is not None


async def awaited(value: Any) -> Any:
    """A function's result, whether it is a coroutine's or not."""
    return await value if inspect.iscoroutine(value) else value


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return name[-_LONGEST_NAME:]
