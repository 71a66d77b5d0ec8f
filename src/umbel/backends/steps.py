"""The role that stores the steps of jobs: work that is done and is not repeated.

Steps belong to their job. They exist as long as the job is live or its record is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn, Protocol

from umbel.errors import ConfigurationError
from umbel.messages import KeptStep, Step


class Steps(Protocol):
    """Stores and reads steps. All methods are safe to repeat."""

    async def keep(self, done: Sequence[KeptStep]) -> list[KeptStep]:
        """Store steps; return those that were refused because their lease is no longer held.

        Steps that were not refused survive the death of every process that takes part. The first
        step stored at a position of a job stays; another one at the same position changes nothing,
        so repeating the call after an error is safe. Refused steps have no effect. A stored step is
        progress: earlier deaths of workers are no longer blamed on the job.

        Raises:
            Unavailable: either all of it happened or none of it.
        """

    async def steps(self, job: str) -> list[Step]:
        """Return the steps of a job, by number. An unknown job has none."""

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""


class Transactions(Protocol):
    """Runs steps whose effects are in the store's own database.

    The effects of ``work`` on its connection and the step that it returns become durable in one
    transaction. If the process dies in between, or ``work`` raises, neither is stored.
    """

    def run(self, work: Callable[[Any], KeptStep]) -> KeptStep:
        """Run blocking work in a transaction of its own. Any thread may call it.

        Raises:
            LeaseLost: the lease of the job is lost; nothing has happened.
            Unavailable: the database does not answer. If that was the commit, the next run of the
                job reads its outcome.
        """

    async def arun(self, work: Callable[[Any], Awaitable[KeptStep]]) -> KeptStep:
        """``run`` for a coroutine. The connection is asynchronous if the database has such."""

    def join(self, connection: Any) -> Any:
        """Return what ``keep_within`` needs, for a connection of the caller.

        Raises:
            ConfigurationError: it is not a connection to this database, or has no open
                transaction. The caller's transaction stays usable.
        """

    async def ajoin(self, connection: Any) -> Any:
        """``join`` for a connection of async code."""

    def keep_within(self, kept: KeptStep, connection: Any) -> None:
        """Store a step in the transaction of a joined connection; it commits with the transaction.

        Never commits or rolls back. Raises LeaseLost, Unavailable.
        """

    async def akeep_within(self, kept: KeptStep, connection: Any) -> None:
        """``keep_within`` for a connection of async code."""

    def close(self) -> None:
        """Free connections. Closing twice is fine."""


class NoTransactions:
    """For stores without transactions: each method raises ConfigurationError with the reason."""

    def __init__(self, why: str) -> None:
        self._why = why

    def run(self, work: Callable[[Any], KeptStep]) -> KeptStep:
        """Raises ConfigurationError."""
        self._refuse()

    async def arun(self, work: Callable[[Any], Awaitable[KeptStep]]) -> KeptStep:
        """Raises ConfigurationError."""
        self._refuse()

    def join(self, connection: Any) -> Any:
        """Raises ConfigurationError."""
        self._refuse()

    async def ajoin(self, connection: Any) -> Any:
        """Raises ConfigurationError."""
        self._refuse()

    def keep_within(self, kept: KeptStep, connection: Any) -> None:
        """Raises ConfigurationError."""
        self._refuse()

    async def akeep_within(self, kept: KeptStep, connection: Any) -> None:
        """Raises ConfigurationError."""
        self._refuse()

    def close(self) -> None:
        """Do nothing."""

    def _refuse(self) -> NoReturn:
        raise ConfigurationError(
            f"step.transaction: {self._why}. Use step(...) with a function that may be repeated"
            " if its worker dies before the step is kept"
        )
