"""Handles of published jobs: read the state, wait for the result, cancel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Generator
from math import inf, isnan
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from umbel.errors import BadMessage, ConfigurationError, JobCancelled, JobExpired, JobFailed
from umbel.messages import REFERENCE, BodyCodec, Record, State, decode_as
from umbel.messages.graphs import Graph, GraphNode
from umbel.messages.nodes import mark_of
from umbel.tasks.failures import rebuild

R = TypeVar("R", covariant=True)
T = TypeVar("T")


class Jobs(Protocol):
    """The application, as a handle sees it. ``wait_for`` is the one bridge for sync callers."""

    codec: BodyCodec

    async def record(self, job: str) -> Record:
        """Return the job's record. Raise UnknownJob."""

    def wait_finished_blocking(self, job: str, timeout: float | None) -> Record:
        """Block until the record is final and return it. Raise UnknownJob, ResultTimeout.

        Of a job that was replaced by another, it returns the record of that one. Takes no longer
        than ``timeout``, even if the store does not answer.
        """

    async def await_finished(self, job: str, timeout: float | None) -> Record:
        """``wait_finished_blocking`` for async code."""

    def load_blocking(self, record: Record) -> Any:
        """Return the result of a job that is results of other jobs. Raise NodeFailed."""

    async def load_on_loop(self, record: Record) -> Any:
        """``load_blocking`` for async code."""

    async def read_graph(self, job: str) -> Graph:
        """Return a graph. Raise NotAllowed if the job is not one, UnknownJob."""

    async def signal(self, job: str, name: str, value: Any, sender: str) -> None:
        """Give a signal of a workflow its value. Raise NotAllowed, UnknownJob, BadArguments."""

    async def progress(self, job: str) -> tuple[float, float | None]:
        """Return the progress of a graph or job. Raise UnknownJob."""

    def updates(self, job: str) -> AsyncIterator[GraphNode]:
        """Return the nodes of a graph as they end, also after it has its result."""

    async def cancel(self, job: str, reason: str) -> bool:
        """Cancel a job; of a graph, all nodes. Return False if it has ended otherwise."""

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work in the client's event loop and block until it is done.

        Raises:
            Unavailable: it was not done within the client's deadline.
        """

    async def await_on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work in the client's event loop and await it from another. Raise Unavailable."""


class BroadcastResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a broadcast on one worker."""

    index: int
    state: Literal["done", "failed", "missing"]
    """Missing: the worker ended before it ran the job."""
    result: Any = None
    reason: str = ""


class Handle(Generic[R]):
    """One published job. ``handle.get()`` blocks, ``await handle`` does not."""

    __slots__ = ("_jobs", "_returns", "id")

    def __init__(self, job: str, jobs: Jobs, returns: Any = Any) -> None:
        self.id = job
        self._jobs = jobs
        self._returns = returns

    is_part = True
    """A handle may be a member of a group."""

    @property
    def returns(self) -> Any:
        """The type that its task declares for the result; Any if that is unknown."""
        return self._returns

    @property
    def state(self) -> State:
        """The state of the job now.

        Raises:
            UnknownJob: it was never published (a rolled-back transaction), or was pruned.
            Unavailable: the store did not answer within the client's deadline.
        """
        return self.record().state

    def record(self) -> Record:
        """Return the job's record. Raise UnknownJob, Unavailable."""
        return self._jobs.wait_for(self._jobs.record(self.id))

    async def arecord(self) -> Record:
        """``record`` for async code."""
        return await self._jobs.await_on_loop(self._jobs.record(self.id))

    def get(self, timeout: float | None = None) -> R:
        """Wait for the result. A failed job raises its task's own exception here.

        Raises:
            ResultTimeout: not finished in time. JobCancelled, JobExpired, JobFailed: no result.
            UnknownJob: no such job. The call waits for a message in the backlog of this process.
            ConfigurationError: the timeout is NaN.
        """
        record = self._jobs.wait_finished_blocking(self.id, _check_timeout(timeout))
        if _is_reference(record):
            return self._typed_if_it_fits(self._jobs.load_blocking(record))
        return self._value(record)

    async def aget(self, timeout: float | None = None) -> R:
        """``get`` for async code; ``await handle`` is the same without a timeout."""
        record = await self._jobs.await_finished(self.id, _check_timeout(timeout))
        if _is_reference(record):
            return self._typed_if_it_fits(await self._jobs.load_on_loop(record))
        return self._value(record)

    def __await__(self) -> Generator[Any, None, R]:
        return self.aget().__await__()

    def cancel(self, reason: str = "cancelled by its publisher") -> bool:
        """Keep the job from running, or stop it. Return False if it has ended otherwise.

        Raises:
            UnknownJob: no such job. Unavailable: the store did not answer within the deadline; the
            job may be cancelled nevertheless.
        """
        return self._jobs.wait_for(self._jobs.cancel(self.id, reason))

    async def acancel(self, reason: str = "cancelled by its publisher") -> bool:
        """``cancel`` for async code."""
        return await self._jobs.await_on_loop(self._jobs.cancel(self.id, reason))

    @property
    def graph(self) -> Graph:
        """The graph as it is now, with its nodes and their states; see ``umbel.graphs.Graph``.

        Raises:
            NotAllowed: the job is not a graph. UnknownJob, Unavailable.
        """
        return self._jobs.wait_for(self._jobs.read_graph(self.id))

    async def agraph(self) -> Graph:
        """``graph`` for async code."""
        return await self._jobs.await_on_loop(self._jobs.read_graph(self.id))

    @property
    def progress(self) -> tuple[float, float | None]:
        """How much is done, and of how much: of a graph its tasks, of a job what it reports."""
        return self._jobs.wait_for(self._jobs.progress(self.id))

    async def aprogress(self) -> tuple[float, float | None]:
        """``progress`` for async code."""
        return await self._jobs.await_on_loop(self._jobs.progress(self.id))

    def signal(self, name: str, value: Any = True, *, sender: str = "") -> None:
        """Give a signal of this workflow its value; the first value counts.

        Raises:
            NotAllowed: it has a value or has ended. BadArguments: the value has another type.
            UnknownJob: there is no such workflow or signal. Unavailable.
        """
        self._jobs.wait_for(self._jobs.signal(self.id, name, value, sender))

    async def asignal(self, name: str, value: Any = True, *, sender: str = "") -> None:
        """``signal`` for async code."""
        await self._jobs.await_on_loop(self._jobs.signal(self.id, name, value, sender))

    async def updates(self) -> AsyncIterator[GraphNode]:
        """Return the nodes of a graph as they end, each once, until all have ended.

        Branches of a fork and handlers may end after the graph has its result.
        """
        async for node in self._jobs.updates(self.id):
            yield node

    def __repr__(self) -> str:
        return f"Handle({self.id})"

    def _typed(self, value: Any) -> R:
        """Return a value as the type that the task declares."""
        if self._returns is Any or self._returns is None:
            return value  # type: ignore[no-any-return]
        return decode_as(value, self._returns, "result")  # type: ignore[no-any-return]

    def _typed_if_it_fits(self, value: Any) -> R:
        """Return a list as its declared type; a member may have finished early with any value."""
        try:
            return self._typed(value)
        except BadMessage:
            return value  # type: ignore[no-any-return]

    def _value(self, record: Record) -> R:
        match record.state:
            case State.SUCCEEDED:
                if record.result is None:
                    return None  # type: ignore[return-value]  # the task's ``track`` keeps no result
                value = self._jobs.codec.decode(record.result)
                # A task that finished the graph early may have done so with any value.
                is_early = mark_of(record.result.content_type, "early") is not None
                return value if is_early else self._typed(value)
            case State.CANCELLED:
                raise JobCancelled(f"job {self.id} was cancelled: {record.reason}")
            case State.EXPIRED:
                raise JobExpired(f"job {self.id} expired before it could start")
            case _ if record.failure is not None:
                raise rebuild(record.failure, self.id)
            case _:
                raise JobFailed(f"job {self.id} was buried: {record.reason}")


def _is_reference(record: Record) -> bool:
    """Whether a job has succeeded with results of other jobs."""
    result = record.result
    return (
        record.state is State.SUCCEEDED
        and result is not None
        and (result.content_type.startswith(REFERENCE))
    )


def _check_timeout(timeout: float | None) -> float | None:
    """Return the timeout, None for infinity. Refuse NaN: with NaN, waiting would never end."""
    if timeout is not None and isnan(timeout):
        raise ConfigurationError("timeout=nan: give seconds, or None to wait until the job ends")
    return None if timeout == inf else timeout
