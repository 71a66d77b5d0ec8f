"""Finding the primary: the Sentinels are asked for it before every new connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import RedisError

from umbel.backends.redis.connections import (
    Connection,
    SyncConnection,
    abort,
    connect,
    connect_blocking,
    execute,
)
from umbel.backends.redis.values import text

_PRIMARY_COMMAND = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME")

HostPort = tuple[str, int]


class Sentinels:
    """Connects to the current primary.

    The first Sentinel that answers is used, and asked first the next time. During a failover it may
    name a server that is gone or is a replica. Then connecting fails, and the next attempt asks
    again.
    """

    def __init__(
        self, scheme: str, sentinels: Sequence[HostPort], name: str, options: dict[str, Any]
    ) -> None:
        self._scheme = scheme
        self._sentinels = [*sentinels]
        self._name = name
        self._options = options
        """redis-py's options for connections to the Sentinels themselves."""

    async def connect(self, options: dict[str, Any]) -> Connection:
        """Return a connection to the primary. Raises redis-py's errors."""
        connection = await connect(self._scheme, options | await self._find_primary())
        try:
            _check_is_primary(await execute(connection, "ROLE"))
        except BaseException:
            abort(connection)
            raise
        return connection

    def connect_blocking(self, options: dict[str, Any]) -> SyncConnection:
        """Return a blocking connection to the primary. Raises redis-py's errors."""
        connection = connect_blocking(self._scheme, options | self._find_primary_blocking())
        try:
            connection.send_command("ROLE")
            _check_is_primary(connection.read_response())
        except BaseException:
            connection.disconnect()
            raise
        return connection

    async def _find_primary(self) -> dict[str, Any]:
        failures = _Failures(self._name)
        for sentinel in [*self._sentinels]:
            with failures.collect(sentinel):
                connection = await connect(self._scheme, self._options_for(sentinel))
                try:
                    answer = await execute(connection, *_PRIMARY_COMMAND, self._name)
                finally:
                    abort(connection)
                return self._read_primary(sentinel, answer)
        raise failures.error()

    def _find_primary_blocking(self) -> dict[str, Any]:
        failures = _Failures(self._name)
        for sentinel in [*self._sentinels]:
            with failures.collect(sentinel):
                connection = connect_blocking(self._scheme, self._options_for(sentinel))
                try:
                    connection.send_command(*_PRIMARY_COMMAND, self._name)
                    answer = connection.read_response()
                finally:
                    connection.disconnect()
                return self._read_primary(sentinel, answer)
        raise failures.error()

    def _options_for(self, sentinel: HostPort) -> dict[str, Any]:
        return self._options | {"host": sentinel[0], "port": sentinel[1]}

    def _read_primary(self, sentinel: HostPort, answer: Any) -> dict[str, Any]:
        if not answer:
            raise NotConnected(f"it watches no {self._name!r}")
        self._sentinels.remove(sentinel)
        self._sentinels.insert(0, sentinel)
        return {"host": text(answer[0]), "port": int(answer[1])}


class _Failures:
    """The errors of the Sentinels that could not name the primary."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._messages: list[str] = []

    @contextmanager
    def collect(self, sentinel: HostPort) -> Iterator[None]:
        """Record an error of this Sentinel instead of raising it, so that the next one is asked."""
        try:
            yield
        except (RedisError, OSError) as error:
            self._messages.append(f"{sentinel[0]}:{sentinel[1]}: {error}")

    def error(self) -> NotConnected:
        """Return the error to raise if no Sentinel could name the primary."""
        return NotConnected(
            f"no Sentinel knows where {self._name!r} is ({'; '.join(self._messages)})"
        )


def _check_is_primary(role: Any) -> None:
    """Raises ConnectionError if the server is not the primary."""
    if text(role[0]) != "master":
        raise NotConnected("a failover is under way: the server it named is no primary")
