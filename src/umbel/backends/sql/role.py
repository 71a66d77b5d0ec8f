"""What the shared roles need of a database, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol, TypeVar

from umbel.backends.notifier import WakeUpListener
from umbel.backends.sql.statements import Query, Row, Steps
from umbel.clock import Clock
from umbel.errors import UnknownJob

T = TypeVar("T")


class SqlDatabase(Protocol):
    """The ``Database`` of a server, as the shared roles use it."""

    def queries(self, *files: str) -> dict[str, Query]:
        """Return the named queries of these files of the server's package."""

    def substitute(self, query: Query, name: str, text: str) -> Query:
        """Return the query with ``$name`` replaced by SQL text."""

    async def rows(
        self, query: Query, values: Mapping[str, Any], timeout: float | None = None
    ) -> list[Row]:
        """Return the rows of one statement, which is a transaction of its own."""

    async def perform(self, steps: Callable[[], Steps[T]]) -> T:
        """Run the steps on one connection, each statement as its own transaction."""

    async def transaction(self, steps: Callable[[], Steps[T]]) -> T:
        """Run the steps in one transaction. Nothing has happened if they raise."""

    async def open(self) -> None:
        """Connect, if that is needed before ``wake_ups`` can be used."""

    def wake_ups(self, topic: str) -> AbstractContextManager[WakeUpListener]:
        """Return a listener that wakes up after commits that concern the topic."""

    @property
    def max_wait(self) -> float:
        """Seconds after which to check again even if no wake-up has come."""

    def stored_id(self, job: str) -> str:
        """Return a job id in the form of the ``id`` column. Raise UnknownJob if it is no id."""

    def text(self, value: str) -> str:
        """Return the text without characters that the server cannot store."""

    def texts(self, values: Sequence[str]) -> str:
        """Return a list of texts as one parameter."""

    def numbers(self, values: Sequence[float | None]) -> str:
        """Return a list of numbers as one parameter."""

    def json(self, value: Any) -> str:
        """Return a value as a parameter for a JSON column."""

    async def close(self) -> None:
        """Close the connections. Closing twice is fine."""


class SqlRole:
    """A role of one namespace on one database. ``files`` are the files that have its queries."""

    files: ClassVar[tuple[str, ...]] = ()

    def __init__(self, database: SqlDatabase, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock
        self._sql = database.queries(*self.files)

    @property
    def database(self) -> SqlDatabase:
        """The database, for steps that several roles share."""
        return self._database

    @property
    def sql(self) -> dict[str, Query]:
        """The queries, for steps that several roles share."""
        return self._sql

    def values(self, **values: Any) -> dict[str, Any]:
        """Return parameters for any query, for steps that several roles share."""
        return self._values(**values)

    async def close(self) -> None:
        await self._database.close()

    def _values(self, **values: Any) -> dict[str, Any]:
        """Return parameters for any query. ``now`` is for servers that have no clock."""
        return {"namespace": self._namespace, "now": self._clock.now(), **values}

    async def _rows(self, query: str, **values: Any) -> list[Row]:
        return await self._database.rows(self._sql[query], self._values(**values))

    def _stored_ids(self, jobs: Iterable[str]) -> dict[str, str]:
        """Map the stored form of each id to the caller's form. Other texts are left out."""
        found: dict[str, str] = {}
        for job in jobs:
            try:
                found[self._database.stored_id(job)] = job
            except UnknownJob:
                continue
        return found


def unknown_job(job: str) -> UnknownJob:
    """Return the error for an id that no table has."""
    return UnknownJob(f"no job {job}: never published here, rolled back, or pruned")
