"""The role that keeps the steps of jobs: what is done, and is not to be done again.

Steps belong to their job. They are there as long as it lives or its record is kept, and no longer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn, Protocol

from umbel.errors import ConfigurationError
from umbel.messages import Kept, Step


class Steps(Protocol):
    """Keeps and reads steps. All of it is safe to repeat."""

    async def keep(self, done: Sequence[Kept]) -> list[Kept]:
        """Keep steps; returns those that were refused because their lease is no longer held.

        What was not refused survives the death of every process here. The first that is kept in a
        place of a job stays: another in the same place changes nothing, so repeating after an error
        is safe. Of steps that are refused nothing has happened. A job that has a step kept gets on:
        deaths of its workers before that are blamed on it no more.

        Raises:
            Unavailable: all of it happened or nothing.
        """

    async def steps(self, job: str) -> list[Step]:
        """All that is kept of a job, by number. An unknown job has none."""

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""


class Transactions(Protocol):
    """Steps whose effects are in the store's own database: both are there, or neither.

    What ``work`` does with its connection and the step it returns become durable in one
    transaction. If the process dies in between, or ``work`` raises, there is neither.
    """

    def run(self, work: Callable[[Any], Kept]) -> Kept:
        """Do blocking work in a transaction of our own. Belongs to no thread.

        Raises:
            LeaseLost: the job was taken from here; nothing has happened. Unavailable: the database
            does not answer; if it was the commit, its outcome is read when the job runs again.
        """

    async def arun(self, work: Callable[[Any], Awaitable[Kept]]) -> Kept:
        """The same for a coroutine; the connection is an asynchronous one, if there is such."""

    def join(self, connection: Any) -> Any:
        """What ``keep_within`` takes, for a connection that a caller brings.

        Raises:
            ConfigurationError: it is none to this very database, or has no transaction open. The
            caller's transaction stays usable.
        """

    async def ajoin(self, connection: Any) -> Any:
        """The same for a connection of async code."""

    def keep_within(self, kept: Kept, connection: Any) -> None:
        """Keep a step in the transaction of a connection that was joined; it shares its fate.

        Never commits or rolls back. Raises LeaseLost, Unavailable.
        """

    async def akeep_within(self, kept: Kept, connection: Any) -> None:
        """The same for a connection of async code."""

    def close(self) -> None:
        """Free connections. Closing twice is fine."""


class NoTransactions:
    """Where there are none; each use says why, and what to do instead."""

    def __init__(self, why: str) -> None:
        self._why = why

    def run(self, work: Callable[[Any], Kept]) -> Kept:
        """Raises ConfigurationError."""
        self._refuse()

    async def arun(self, work: Callable[[Any], Awaitable[Kept]]) -> Kept:
        """Raises ConfigurationError."""
        self._refuse()

    def join(self, connection: Any) -> Any:
        """Raises ConfigurationError."""
        self._refuse()

    async def ajoin(self, connection: Any) -> Any:
        """Raises ConfigurationError."""
        self._refuse()

    def keep_within(self, kept: Kept, connection: Any) -> None:
        """Raises ConfigurationError."""
        self._refuse()

    async def akeep_within(self, kept: Kept, connection: Any) -> None:
        """Raises ConfigurationError."""
        self._refuse()

    def close(self) -> None:
        """There is nothing to free."""

    def _refuse(self) -> NoReturn:
        raise ConfigurationError(
            f"step.transaction: {self._why}. Use step(...) with a function that may be repeated"
            " if its worker dies before the step is kept"
        )
