"""Every hook, on one page: code of the application that runs around jobs.

=================  ================================================================================
on_publish         Called before a job is published, in the caller's thread; returns headers for it.
on_fetch           Called with the jobs that a worker has fetched, before they start.
around_run         Runs around each run of a task, in its thread or coroutine; it yields once.
on_settle          Called after an outcome was recorded.
on_worker_start    Called when a worker has registered, before its first fetch.
on_worker_stop     Called when a worker has settled its last job.
on_tick            Called after a schedule has published a job.
=================  ================================================================================

Hooks are called in the order in which ``app.use`` got them; the code after the ``yield`` of
``around_run`` in the reverse order. All but ``on_publish`` may be ``async``. If a hook raises, that
is reported, and the job goes on as if the hook did not exist: it is neither lost nor does its
outcome change. A hook that waits too long is cancelled if it is ``async``; ``around_run`` is part
of the run, so the timeout of the task applies to it. A method that no hook overrides costs nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import (
    AsyncGenerator,
    Callable,
    Container,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from concurrent.futures import wait as wait_for_futures
from datetime import datetime
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from umbel.errors import ConfigurationError
from umbel.tasks.current import Job, running

_ASYNC_SECONDS = 10.0
_STOP_SECONDS = 0.1
"""How long a thread that waits for an ``async`` hook does not notice a stop."""
_HEADER = re.compile(r"[a-z0-9]{1,20}")
_MAX_HEADER_CHARACTERS = 8_192

_Steps: TypeAlias = Generator[Any, None, None]
_AsyncSteps: TypeAlias = AsyncGenerator[Any, None]
T = TypeVar("T")
MayAwait: TypeAlias = Any
"""None, or an awaitable that returns None."""


class OutgoingJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is about to be published."""

    id: str
    task: str
    queue: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class SettledJob(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose outcome was recorded."""

    job: Job
    outcome: str
    """``succeeded``, ``failed``, ``retry``, ``snoozed``, ``interrupted``, ``parked``,
    ``cancelled``, ``rejected`` or ``expired``."""
    seconds: float
    """How long it ran."""
    error: str = ""
    """The last line of its traceback, or the reason."""


class PublishedTick(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a schedule has published."""

    schedule: str
    nominal: datetime
    """When it was due, in UTC."""
    job: str


class Hook:
    """Override what you need. An object with some of these methods is a hook, too."""

    def on_publish(self, job: OutgoingJob) -> Mapping[str, str] | None:
        """Return headers to send with a job; the task finds them in ``current.job.headers``.

        Names have 1 to 20 lower-case letters and digits. The headers of Umbel cannot be replaced.
        """

    def on_fetch(self, jobs: Sequence[Job]) -> MayAwait:
        """Look at jobs that were fetched together. It must not block: no job starts meanwhile."""

    def around_run(self, job: Job) -> Any:
        """Do something, yield once, and do something after the run.

        What the task raised is raised at the ``yield``. Catching it does not change the outcome.
        """

    def on_settle(self, settled: SettledJob) -> MayAwait:
        """Look at an outcome. It must not block: no other outcome is recorded meanwhile."""

    def on_worker_start(self, worker: str) -> MayAwait:
        """Prepare what the tasks of this process need."""

    def on_worker_stop(self, worker: str) -> MayAwait:
        """Release it. Not called if the process is killed."""

    def on_tick(self, tick: PublishedTick) -> MayAwait:
        """Look at a job that a schedule has published.

        Called in the event loop of the process whose scheduler is the leader.
        """


NAMES = tuple(name for name in vars(Hook) if not name.startswith("_"))


class ReportFailure(Protocol):
    """Reports that a hook has failed."""

    def __call__(self, hook: str, error: str) -> None: ...


class Hooks:
    """The hooks of an application: for each name, the methods to call."""

    def __init__(self, report: ReportFailure) -> None:
        self._report = report
        self._methods: dict[str, tuple[Callable[..., Any], ...]] = dict.fromkeys(NAMES, ())
        self._tasks: set[asyncio.Task[None]] = set()
        self.publishes = False
        """Whether there is a hook ``on_publish``."""
        self.runs = False
        self.fetches = False
        self.settles = False
        self.ticks = False

    def add(self, hook: object) -> None:
        """Call this hook after those that were added before.

        Raises:
            ConfigurationError: it has no hook, or one with an unknown name or of the wrong kind.
        """
        found = {name: getattr(hook, name) for name in NAMES if _is_overridden(hook, name)}
        given = (name for name in dir(hook) if name.startswith(("on_", "around_")))
        unknown = [name for name in given if name not in NAMES]
        if unknown or not found or isinstance(hook, type):
            why = f"unknown hook {unknown[0]}" if unknown else "no hook"
            why = "a class; give an object" if isinstance(hook, type) else why
            raise ConfigurationError(f"use({_name(hook)}): {why}; there are {', '.join(NAMES)}")
        for name, method in found.items():
            _check_kind(hook, name, method)
            self._methods[name] = (*self._methods[name], method)
        self.publishes = bool(self._methods["on_publish"])
        self.runs = bool(self._methods["around_run"])
        self.fetches = bool(self._methods["on_fetch"])
        self.settles = bool(self._methods["on_settle"])
        self.ticks = bool(self._methods["on_tick"])

    def headers(self, job: OutgoingJob, reserved: Container[str]) -> dict[str, str]:
        """Return the headers that hooks add to a job, except those with a reserved name."""
        added: dict[str, str] = {}
        for method in self._methods["on_publish"]:
            try:
                for name, value in (method(job) or {}).items():
                    added[_header_name(name, reserved)] = _header_value(name, value)
            except Exception as error:  # noqa: BLE001 - a hook is user code
                self._failed(method, error)
        return added

    async def call(self, name: str, *arguments: Any, limit: float = _ASYNC_SECONDS) -> None:
        """Call a hook of every object, in the running event loop; cancel it after the limit."""
        for method in self._methods[name]:
            try:
                found = method(*arguments)
            except BaseException as error:  # noqa: BLE001 - a hook is user code
                self._failed(method, error)
                continue
            if inspect.isawaitable(found):
                await self._await(method, found, limit)

    async def _await(self, method: Callable[..., Any], found: Any, limit: float) -> None:
        """Await it in a task of its own, so that a hook that ignores a cancellation is left."""
        task = asyncio.create_task(self._finish(method, found))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait({task}, timeout=limit)
            if not task.done():
                text = f"it was not done after {limit:g} s and was cancelled"
                self._report(_method_name(method), text)
        finally:
            task.cancel()

    async def _finish(self, method: Callable[..., Any], found: Any) -> None:
        try:
            await found
        except BaseException as error:
            if _is_cancelled(error):
                raise
            self._failed(method, error)

    async def run(self, job: Job, call: Callable[[], Any]) -> Any:
        """Return what ``call()`` returns, which is awaited, inside ``around_run``."""
        entered, value, error = [], None, None
        try:
            for method in self._methods["around_run"]:
                if generator := await self._enter(method, job):
                    entered.append((method, generator))
            _raise_stop()
            value = await call()
        except BaseException as raised:  # noqa: BLE001 - raised again below
            error = raised
        for method, generator in reversed(entered):
            error = await self._leave(method, generator, error)
        if error is not None:
            raise error
        return value

    def run_blocking(
        self, job: Job, call: Callable[[], Any], loop: asyncio.AbstractEventLoop | None = None
    ) -> Any:
        """Return what ``call()`` returns, inside ``around_run``.

        ``async`` hooks run in this event loop, or in one of their own if there is none.
        """
        entered: list[tuple[Callable[..., Any], _Steps | _AsyncSteps]] = []
        value: Any = None
        error: BaseException | None = None
        try:
            for method in self._methods["around_run"]:
                if inspect.isasyncgenfunction(method):
                    generator = _wait(self._enter(method, job), loop)
                else:
                    generator = self._enter_blocking(method, job)
                if generator is not None:
                    entered.append((method, generator))
            _raise_stop()
            value = call()
        except BaseException as raised:  # noqa: BLE001 - raised again below
            error = raised
        for method, generator in reversed(entered):
            if isinstance(generator, Generator):
                error = self._leave_blocking(method, generator, error)
                continue
            try:
                error = _wait(self._leave(method, generator, error), loop)
            except BaseException as stop:  # noqa: BLE001 - raised again below
                error = error or stop
        if error is not None:
            raise error
        return value

    async def _enter(self, method: Callable[..., Any], job: Job) -> _Steps | _AsyncSteps | None:
        if not inspect.isasyncgenfunction(method):
            return self._enter_blocking(method, job)
        try:
            generator: _AsyncSteps = method(job)
            await anext(generator)
        except StopAsyncIteration:
            self._report(_method_name(method), "it did not yield; it must yield once")
        except BaseException as error:
            if _is_stop(error) or _is_cancelled(error):
                raise
            self._failed(method, error)
        else:
            return generator
        return None

    def _enter_blocking(self, method: Callable[..., Any], job: Job) -> _Steps | None:
        try:
            generator: _Steps = method(job)
            next(generator)
        except StopIteration:
            self._report(_method_name(method), "it did not yield; it must yield once")
        except BaseException as error:
            if _is_stop(error):
                raise
            self._failed(method, error)
        else:
            return generator
        return None

    async def _leave(
        self,
        method: Callable[..., Any],
        generator: _Steps | _AsyncSteps,
        error: BaseException | None,
    ) -> BaseException | None:
        """Run what follows the ``yield``. Return the error, or the stop that has ended it."""
        if isinstance(generator, Generator):
            return self._leave_blocking(method, generator, error)
        try:
            if error is None:
                await anext(generator)
            else:
                await generator.athrow(error)
            self._report(_method_name(method), "it yielded twice; it must yield once")
            await generator.aclose()
        except StopAsyncIteration:
            pass
        except BaseException as raised:  # noqa: BLE001 - a hook is user code
            if error is None and _is_cancelled(raised):
                return raised
            return self._error_of(method, raised, error)
        return error

    def _leave_blocking(
        self,
        method: Callable[..., Any],
        generator: _Steps,
        error: BaseException | None,
    ) -> BaseException | None:
        try:
            if error is None:
                next(generator)
            else:
                generator.throw(error)
            self._report(_method_name(method), "it yielded twice; it must yield once")
            generator.close()
        except StopIteration:
            pass
        except BaseException as raised:  # noqa: BLE001 - a hook is user code
            return self._error_of(method, raised, error)
        return error

    def _error_of(
        self, method: Callable[..., Any], raised: BaseException, error: BaseException | None
    ) -> BaseException | None:
        """Return the error of the run. What else the hook has raised is reported."""
        if error is None and _is_stop(raised):
            return raised
        # A generator cannot raise StopIteration; Python raises RuntimeError in its place.
        is_replaced = isinstance(error, StopIteration | StopAsyncIteration)
        if raised is not error and not (is_replaced and raised.__cause__ is error):
            self._failed(method, raised)
        return error

    def _failed(self, method: Callable[..., Any], error: BaseException) -> None:
        try:
            text = f"{type(error).__name__}: {error}"
        except Exception:  # noqa: BLE001 - its __str__ is user code
            text = type(error).__name__
        self._report(_method_name(method), text)


def _wait(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None) -> T:
    """Run a coroutine in an event loop and return its result. A stop of this thread cancels it."""
    if loop is None:
        return asyncio.run(work)
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        # A thread that waits without a limit cannot be stopped.
        while not wait_for_futures([future], _STOP_SECONDS).done:
            pass
        return future.result()
    finally:
        future.cancel()


def _raise_stop() -> None:
    """Raise the stop of this run that a hook has caught, if there is one."""
    run = running.get(None)
    if run is not None and run.stop_reason is not None:
        raise run.stop_reason


def _is_stop(error: BaseException) -> bool:
    """Whether a hook was ended by a stop of its run, such as a timeout."""
    run = running.get(None)
    is_stopping = run is not None and run.stop_reason is not None
    return is_stopping and not isinstance(error, Exception)


def _is_cancelled(error: BaseException) -> bool:
    """Whether the asyncio task that runs a hook was cancelled from outside."""
    task = asyncio.current_task()
    is_cancelling = task is not None and task.cancelling() > 0
    return is_cancelling and isinstance(error, asyncio.CancelledError)


def _is_overridden(hook: object, name: str) -> bool:
    method = getattr(hook, name, None)
    return callable(method) and getattr(type(hook), name, None) is not getattr(Hook, name)


def _check_kind(hook: object, name: str, method: Callable[..., Any]) -> None:
    is_generator = inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method)
    if name == "around_run" and not is_generator:
        raise ConfigurationError(f"{_name(hook)}.{name}: it must have one yield, for the run")
    if name != "around_run" and is_generator:
        raise ConfigurationError(f"{_name(hook)}.{name}: only around_run may yield")
    if name == "on_publish" and inspect.iscoroutinefunction(method):
        raise ConfigurationError(
            f"{_name(hook)}.{name}: write it as def; delay() calls it without an event loop"
        )


def _header_name(name: str, reserved: Container[str]) -> str:
    if not _HEADER.fullmatch(name):
        raise ValueError(f"header {name!r}: give 1 to 20 lower-case letters and digits")
    if name in reserved:
        raise ValueError(f"header {name!r}: Umbel uses this name; give another one")
    return name


def _header_value(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"header {name!r}: the value is {type(value).__name__}; give a str")
    if len(value) > _MAX_HEADER_CHARACTERS:
        raise ValueError(f"header {name!r}: at most {_MAX_HEADER_CHARACTERS:,} characters")
    if "\0" in value or (not value.isascii() and value != value.encode(errors="replace").decode()):
        raise ValueError(f"header {name!r}: it must be UTF-8 text without NUL")
    return value


def _name(hook: object) -> str:
    return hook.__name__ if isinstance(hook, type) else type(hook).__name__


def _method_name(method: Callable[..., Any]) -> str:
    return getattr(method, "__qualname__", repr(method))
