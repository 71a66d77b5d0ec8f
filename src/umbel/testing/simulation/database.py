"""The real SQLite adapters on a database whose calls travel, get lost, and come back late."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from umbel.backends.sqlite.database import Database, Home
from umbel.errors import Unavailable
from umbel.testing.simulation.fate import Trip
from umbel.testing.simulation.loop import Lane
from umbel.testing.simulation.tasks import registry

if TYPE_CHECKING:
    from umbel.testing.simulation.server import Server

T = TypeVar("T")


class Intent(NamedTuple):
    """Which method of which port a call of the database belongs to."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


NO_INTENT = Intent("", (), {})
_intent: ContextVar[Intent] = ContextVar("intent", default=NO_INTENT)


class Ground:
    """One SQLite database in memory, wiped between two runs: its statements stay prepared."""

    def __init__(self) -> None:
        self.home = Home(":memory:")
        self.connection = self.home.connect(0)
        names = self.connection.execute("select name from sqlite_schema where type = 'table'")
        self._tables = [name for (name,) in names]
        self.registry = registry()

    def wipe(self) -> None:
        """As new."""
        if self.connection.in_transaction:
            self.connection.execute("rollback")
        for table in self._tables:
            self.connection.execute(f"delete from {table}")


class Request:
    """One call on its way."""

    __slots__ = ("answer", "database", "intent", "trip", "work")

    def __init__(
        self,
        database: SimulatedDatabase,
        intent: Intent,
        work: Callable[[sqlite3.Connection], Any],
        answer: asyncio.Future[Any],
    ) -> None:
        self.database = database
        self.intent = intent
        self.work = work
        self.answer = answer
        self.trip = Trip(0.0, 0.0, "")

    def succeed(self, result: Any) -> None:
        """Give the caller its result, if it still waits."""
        if not self.answer.done():
            self.answer.set_result(result)
        self.database.next()

    def fail(self, error: BaseException) -> None:
        """Give the caller an error, if it still waits."""
        if not self.answer.done():
            self.answer.set_exception(error)
        self.database.next()


class SimulatedDatabase(Database):
    """A ``Database`` of one loop of one process; its calls go through the simulated server."""

    def __init__(self, server: Server, owner: Any, lane: Lane, *, use: str) -> None:
        super().__init__(server.ground.home, inline=True)
        self.server = server
        self.owner = owner
        self.use = use
        self.lane = lane
        self.cut_until = 0.0
        self._waiting: deque[Request] = deque()
        self._busy = False
        server.databases.append(self)

    async def run(self, work: Callable[[sqlite3.Connection], T], **_: Any) -> T:
        request = Request(self, _intent.get(), work, self.lane.create_future())
        free = not self._busy or self.server.fate.pooled
        self._busy = True
        if not self.server.serves_at_once(request, free=free):
            self._waiting.append(request)
            if free:
                self.next()
        result: T = await request.answer
        return result

    async def open(self) -> None:
        """There is nothing to open: the log that others listen to is simulated too."""

    async def close(self) -> None:
        """Hear no more hints."""
        if self in self.server.databases:
            self.server.databases.remove(self)

    def next(self) -> None:
        """Send what waits, one call after the other, as a single connection does."""
        self._busy = False
        while self._waiting:
            request = self._waiting.popleft()
            if not request.answer.done():  # one that was given up before it began never happens
                self._busy = True
                self.server.send(request)
                return


class Watched:
    """An adapter that says, with each call of the database, which method makes it."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._adapter, name)
        if inspect.iscoroutinefunction(method):
            method = _noting(name, method)
        setattr(self, name, method)
        return method


def _noting(name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        _intent.set(Intent(name, args, kwargs))
        return await method(*args, **kwargs)

    return call


def unavailable(text: str) -> Unavailable:
    """What a caller hears when the database did not answer."""
    return Unavailable(f"simulated: {text}")
