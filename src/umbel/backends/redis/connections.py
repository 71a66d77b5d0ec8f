"""Connections to a server: those of redis-py, without its retries and connection pools.

A retry by redis-py would repeat a command without the caller's knowledge, and its answer would be
that of a repetition: already settled, already published. The caller decides whether to repeat a
command.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol

import hiredis
from redis import connection as blocking
from redis.asyncio import connection as asynchronous
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry

from umbel.backends.redis.scripts import Script

_ASYNC_CLASSES: dict[str, Any] = {
    "redis": asynchronous.Connection,
    "rediss": asynchronous.SSLConnection,
    "unix": asynchronous.UnixDomainSocketConnection,
}
_BLOCKING_CLASSES: dict[str, Any] = {
    "redis": blocking.Connection,
    "rediss": blocking.SSLConnection,
    "unix": blocking.UnixDomainSocketConnection,
}


class Connection(Protocol):
    """The parts of redis-py's asyncio connection that Umbel uses.

    Some have no public equivalent: ``send_packed_command`` connects again if the connection was
    lost, which could repeat a command, ``disconnect`` has to be awaited, which code that was
    cancelled cannot do, and nothing else gives the transport.
    """

    is_connected: bool
    _reader: Any
    _writer: Any

    async def connect(self) -> None: ...
    async def read_response(self, *, timeout: float | None = None) -> Any: ...
    async def can_read(self) -> bool: ...
    async def disconnect(self) -> None: ...
    def _close(self) -> None: ...


class SyncConnection(Protocol):
    """The parts of redis-py's blocking connection that Umbel uses. Its socket is not public."""

    _sock: Any

    def connect(self) -> None: ...
    def send_command(self, *command: str | bytes | int) -> None: ...
    def read_response(self) -> Any: ...
    def disconnect(self) -> None: ...


async def connect(scheme: str, options: dict[str, Any]) -> Connection:
    """Return a new connection, ready for use. Raises redis-py's errors."""
    retry = AsyncRetry(NoBackoff(), 0)
    # Every call has a deadline of its own. A timeout of redis-py would create a task for each
    # write.
    made: Connection = _ASYNC_CLASSES[scheme](
        **options, retry=retry, socket_timeout=None, protocol=2
    )
    try:
        await made.connect()
    except BaseException:
        abort(made)
        raise
    return made


def connect_blocking(scheme: str, options: dict[str, Any]) -> SyncConnection:
    """Return a new blocking connection, ready for use. Raises redis-py's errors."""
    made: SyncConnection = _BLOCKING_CLASSES[scheme](
        **options, retry=Retry(NoBackoff(), 0), protocol=2
    )
    made.connect()
    return made


async def execute(connection: Connection, *command: str | bytes | int | float) -> Any:
    """Return the server's answer to a command.

    After any error except an error answer of the server, the connection is unusable.
    """
    await send_command(connection, *command)
    return await connection.read_response()


async def send_command(connection: Connection, *command: str | bytes | int | float) -> None:
    """Send a command. Raises OSError."""
    if connection._writer is None:
        raise ConnectionResetError("the connection was closed")
    try:
        # redis-py packs commands in Python here, which takes longer than everything else.
        connection._writer.write(hiredis.pack_command(command))  # type: ignore[arg-type]
        await connection._writer.drain()
    except RuntimeError as error:  # uvloop raises this if the connection was closed meanwhile
        raise ConnectionResetError(str(error)) from error


async def run_script(
    connection: Connection, script: Script, root: str, *arguments: str | bytes | int | float
) -> Any:
    """Return a script's answer. A server that does not know the script gets its text."""
    try:
        return await execute(connection, "EVALSHA", script.digest, 1, root, *arguments)
    except NoScriptError:
        return await execute(connection, "EVAL", script.text, 1, root, *arguments)


async def is_usable(connection: Connection) -> bool:
    """Return whether a connection is open and has no unread data.

    Data that was not requested means that the server is closing the connection.
    """
    with suppress(Exception):
        is_open = connection.is_connected and not connection._writer.is_closing()
        return is_open and not await connection.can_read()
    return False


def abort(connection: Connection) -> None:
    """Close a connection at once, whatever it is doing."""
    # The transport of an event loop that has ended cannot be closed; garbage collection closes it.
    with suppress(RuntimeError):
        connection._close()
    connection._reader = connection._writer = None
