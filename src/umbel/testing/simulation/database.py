"""A SQLite database whose calls are delayed, lost and answered late, for the real adapters."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from umbel.backends.sqlite.database import Database, SqliteFile
from umbel.errors import Unavailable
from umbel.testing.simulation.loop import Lane
from umbel.testing.simulation.random_faults import CallConditions
from umbel.testing.simulation.tasks import registry

if TYPE_CHECKING:
    from umbel.testing.simulation.server import Server

T = TypeVar("T")


class PortCall(NamedTuple):
    """The method of a port that makes a call of the database."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


NO_PORT_CALL = PortCall("", (), {})
_port_call: ContextVar[PortCall] = ContextVar("intent", default=NO_PORT_CALL)


class MemoryDatabase:
    """One SQLite database in memory. It is emptied between runs, so statements stay prepared."""

    def __init__(self) -> None:
        self.file = SqliteFile(":memory:")
        self.connection = self.file.connect(0)
        names = self.connection.execute("select name from sqlite_schema where type = 'table'")
        self._tables = [name for (name,) in names]
        self.registry = registry()

    def wipe(self) -> None:
        """Delete all rows."""
        if self.connection.in_transaction:
            self.connection.execute("rollback")
        for table in self._tables:
            self.connection.execute(f"delete from {table}")


class Request:
    """One call of the database."""

    __slots__ = ("answer", "conditions", "database", "port_call", "work")

    def __init__(
        self,
        database: SimulatedDatabase,
        port_call: PortCall,
        work: Callable[[sqlite3.Connection], Any],
        answer: asyncio.Future[Any],
    ) -> None:
        self.database = database
        self.port_call = port_call
        self.work = work
        self.answer = answer
        self.conditions = CallConditions(0.0, 0.0, "")

    def succeed(self, result: Any) -> None:
        """Return a result to the caller, if it still waits."""
        if not self.answer.done():
            self.answer.set_result(result)
        self.database.next()

    def fail(self, error: BaseException) -> None:
        """Raise an error in the caller, if it still waits."""
        if not self.answer.done():
            self.answer.set_exception(error)
        self.database.next()


class SimulatedDatabase(Database):
    """A ``Database`` of one loop of one process; its calls go through the simulated server."""

    def __init__(self, server: Server, owner: Any, lane: Lane, *, use: str) -> None:
        super().__init__(server.memory_database.file, is_loop_dedicated=True)
        self.server = server
        self.owner = owner
        self.use = use
        self.lane = lane
        self.cut_until = 0.0
        self._waiting: deque[Request] = deque()
        self._busy = False
        server.databases.append(self)

    async def run(self, work: Callable[[sqlite3.Connection], T], **_: Any) -> T:
        request = Request(self, _port_call.get(), work, self.lane.create_future())
        free = not self._busy or self.server.rng.pooled
        self._busy = True
        if not self.server.serves_at_once(request, free=free):
            self._waiting.append(request)
            if free:
                self.next()
        result: T = await request.answer
        return result

    async def open(self) -> None:
        """Do nothing: notifications between processes are simulated, too."""

    async def close(self) -> None:
        """Receive no more notifications."""
        if self in self.server.databases:
            self.server.databases.remove(self)

    def next(self) -> None:
        """Send the next waiting call. A single connection sends one call at a time."""
        self._busy = False
        while self._waiting:
            request = self._waiting.popleft()
            if not request.answer.done():  # a call that was abandoned before it began is not sent
                self._busy = True
                self.server.send(request)
                return


class LabeledAdapter:
    """Wraps an adapter and records which method makes each call of the database."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._adapter, name)
        if inspect.iscoroutinefunction(method):
            method = _labeled(name, method)
        setattr(self, name, method)
        return method


def _labeled(name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        _port_call.set(PortCall(name, args, kwargs))
        return await method(*args, **kwargs)

    return call


def unavailable(text: str) -> Unavailable:
    """Return the error for a database that does not answer."""
    return Unavailable(f"simulated: {text}")
