"""What publishing gives back: ask for the state, wait for the result, cancel."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from math import inf, isnan
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from umbel.errors import ConfigurationError, JobCancelled, JobExpired, JobFailed
from umbel.messages import BodyCodec, Record, State, decode_as
from umbel.tasks.failures import rebuild

R = TypeVar("R", covariant=True)
T = TypeVar("T")


class Jobs(Protocol):
    """What a handle asks of the application. Sync callers cross ``wait_for``, the one bridge."""

    codec: BodyCodec

    async def record(self, job: str) -> Record:
        """The job's record. Raises UnknownJob."""

    def ended(self, job: str, timeout: float | None) -> Record:
        """The record once it is final, for a caller that blocks. Raises UnknownJob, ResultTimeout.

        Takes no longer than ``timeout``, whatever the store does.
        """

    async def aended(self, job: str, timeout: float | None) -> Record:
        """``ended`` for async code."""

    async def cancel(self, job: str, reason: str) -> bool:
        """Ask for it not to run or to stop. False when it ended otherwise."""

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it on the application's own loop and block until it is done.

        Raises:
            Unavailable: it was not done within the application's deadline.
        """

    async def hand_over(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it on the application's own loop and await it from any other. Raises Unavailable."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a broadcast on one worker."""

    index: int
    state: Literal["done", "failed", "missing"]
    """Missing: the worker went before it was done."""
    result: Any = None
    reason: str = ""


class Handle(Generic[R]):
    """One published job. ``handle.get()`` blocks, ``await handle`` does not."""

    __slots__ = ("_jobs", "_returns", "id")

    def __init__(self, job: str, jobs: Jobs, returns: Any = Any) -> None:
        self.id = job
        self._jobs = jobs
        self._returns = returns

    @property
    def state(self) -> State:
        """Where the job is now.

        Raises:
            UnknownJob: it was never published (a rolled-back transaction), or was pruned.
            Unavailable: the store did not answer within the application's deadline.
        """
        return self.record().state

    def record(self) -> Record:
        """Everything the store knows of the job. Raises UnknownJob, Unavailable."""
        return self._jobs.wait_for(self._jobs.record(self.id))

    async def arecord(self) -> Record:
        """``record`` for async code."""
        return await self._jobs.hand_over(self._jobs.record(self.id))

    def get(self, timeout: float | None = None) -> R:
        """Wait for the result. A failed job raises its task's own exception here.

        Raises:
            ResultTimeout: not finished in time. JobCancelled, JobExpired, JobFailed: no result.
            UnknownJob: no such job. A message that this process keeps in its backlog is waited for.
            ConfigurationError: the timeout is NaN.
        """
        return self._value(self._jobs.ended(self.id, _checked(timeout)))

    async def aget(self, timeout: float | None = None) -> R:
        """``get`` for async code; ``await handle`` is the same without a timeout."""
        return self._value(await self._jobs.aended(self.id, _checked(timeout)))

    def __await__(self) -> Generator[Any, None, R]:
        return self.aget().__await__()

    def cancel(self, reason: str = "cancelled by its publisher") -> bool:
        """Keep it from running, or stop it. False when it had ended otherwise.

        Raises:
            UnknownJob: no such job. Unavailable: the store did not answer within the deadline; the
            job may be cancelled all the same.
        """
        return self._jobs.wait_for(self._jobs.cancel(self.id, reason))

    async def acancel(self, reason: str = "cancelled by its publisher") -> bool:
        """``cancel`` for async code."""
        return await self._jobs.hand_over(self._jobs.cancel(self.id, reason))

    def __repr__(self) -> str:
        return f"Handle({self.id})"

    def _value(self, record: Record) -> R:
        match record.state:
            case State.SUCCEEDED:
                if record.result is None:
                    return None  # type: ignore[return-value]  # the task's track option said so
                value = self._jobs.codec.decode(record.result)
                if self._returns is Any or self._returns is None:
                    return value  # type: ignore[no-any-return]
                return decode_as(value, self._returns, "result")  # type: ignore[no-any-return]
            case State.CANCELLED:
                raise JobCancelled(f"job {self.id} was cancelled: {record.reason}")
            case State.EXPIRED:
                raise JobExpired(f"job {self.id} expired before it could start")
            case _ if record.failure is not None:
                raise rebuild(record.failure, self.id)
            case _:
                raise JobFailed(f"job {self.id} was buried: {record.reason}")


def _checked(timeout: float | None) -> float | None:
    """NaN is before and after no moment: with it, waiting would never end. Infinity is no limit."""
    if timeout is not None and isnan(timeout):
        raise ConfigurationError("timeout=nan: give seconds, or None to wait until the job ends")
    return None if timeout == inf else timeout
