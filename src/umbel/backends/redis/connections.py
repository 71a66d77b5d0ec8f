"""Connections to a server: redis-py's own, without its retries and its pools.

A command that was repeated behind our back would be answered as a repetition: settled before,
published before. Whoever called decides whether to repeat.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol

import hiredis
from redis import connection as blocking
from redis.asyncio import connection as waiting
from redis.asyncio.retry import Retry as WaitingRetry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry

from umbel.backends.redis.scripts import Script

_WAITING: dict[str, Any] = {
    "redis": waiting.Connection,
    "rediss": waiting.SSLConnection,
    "unix": waiting.UnixDomainSocketConnection,
}
_BLOCKING: dict[str, Any] = {
    "redis": blocking.Connection,
    "rediss": blocking.SSLConnection,
    "unix": blocking.UnixDomainSocketConnection,
}


class Connection(Protocol):
    """What is used of redis-py's connection on an event loop."""

    is_connected: bool
    _reader: Any
    _writer: Any

    async def connect(self) -> None: ...
    async def read_response(self, *, timeout: float | None = None) -> Any: ...
    async def can_read(self) -> bool: ...
    async def disconnect(self) -> None: ...
    def _close(self) -> None: ...


class Blocking(Protocol):
    """What is used of redis-py's connection in a thread that may wait."""

    _sock: Any

    def connect(self) -> None: ...
    def send_command(self, *command: str | bytes | int) -> None: ...
    def read_response(self) -> Any: ...
    def disconnect(self) -> None: ...


async def connected(scheme: str, options: dict[str, Any]) -> Connection:
    """A new connection, ready for use. Raises redis-py's errors."""
    retry = WaitingRetry(NoBackoff(), 0)
    # Every call has a deadline of its own; one more for each write would be a task each.
    made: Connection = _WAITING[scheme](**options, retry=retry, socket_timeout=None, protocol=2)
    try:
        await made.connect()
    except BaseException:
        drop(made)
        raise
    return made


def connected_blocking(scheme: str, options: dict[str, Any]) -> Blocking:
    """The same for a thread that may wait."""
    made: Blocking = _BLOCKING[scheme](**options, retry=Retry(NoBackoff(), 0), protocol=2)
    made.connect()
    return made


async def ask(connection: Connection, *command: str | bytes | int | float) -> Any:
    """What the server answers. After any error but one that it said, the connection is unusable."""
    await say(connection, *command)
    return await connection.read_response()


async def say(connection: Connection, *command: str | bytes | int | float) -> None:
    """Send a command. Raises OSError."""
    if connection._writer is None:
        raise ConnectionResetError("the connection was closed")
    try:
        # redis-py packs in Python here, which takes longer than all the rest of it.
        connection._writer.write(hiredis.pack_command(command))  # type: ignore[arg-type]
        await connection._writer.drain()
    except RuntimeError as error:  # uvloop's word for a line that was closed meanwhile
        raise ConnectionResetError(str(error)) from error


async def run(
    connection: Connection, script: Script, root: str, *arguments: str | bytes | int | float
) -> Any:
    """What a script answers. A server that has not seen it gets the text, and remembers it."""
    try:
        return await ask(connection, "EVALSHA", script.digest, 1, root, *arguments)
    except NoScriptError:
        return await ask(connection, "EVAL", script.text, 1, root, *arguments)


async def is_fresh(connection: Connection) -> bool:
    """Whether the server has left it alone. A server that goes away closes it, unasked."""
    with suppress(Exception):
        is_open = connection.is_connected and not connection._writer.is_closing()
        return is_open and not await connection.can_read()
    return False


def drop(connection: Connection) -> None:
    """Close it without a word, whatever it was doing."""
    # What belongs to an event loop that has ended cannot be told; it is closed when collected.
    with suppress(RuntimeError):
        connection._close()
    connection._reader = connection._writer = None
