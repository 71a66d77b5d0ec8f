"""Who the primary is: Sentinels know, and are asked anew for every connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import RedisError

from umbel.backends.redis.connections import (
    Blocking,
    Connection,
    ask,
    connected,
    connected_blocking,
    drop,
)
from umbel.backends.redis.values import text

_QUESTION = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME")

Place = tuple[str, int]


class Sentinels:
    """Connects to the server that is the primary now.

    The first Sentinel that answers is believed, and asked first the next time. While a failover is
    under way that may be the address of a server that is gone, or is a replica: then there is no
    connection, and the next try asks again.
    """

    def __init__(
        self, scheme: str, places: Sequence[Place], name: str, options: dict[str, Any]
    ) -> None:
        self._scheme = scheme
        self._places = [*places]
        self._name = name
        self._options = options
        """What redis-py is to know of the Sentinels themselves."""

    async def connect(self, options: dict[str, Any]) -> Connection:
        """A connection to the primary. Raises redis-py's errors."""
        connection = await connected(self._scheme, options | await self._primary())
        try:
            _check(await ask(connection, "ROLE"))
        except BaseException:
            drop(connection)
            raise
        return connection

    def connect_blocking(self, options: dict[str, Any]) -> Blocking:
        """The same for a thread that may wait."""
        connection = connected_blocking(self._scheme, options | self._primary_blocking())
        try:
            connection.send_command("ROLE")
            _check(connection.read_response())
        except BaseException:
            connection.disconnect()
            raise
        return connection

    async def _primary(self) -> dict[str, Any]:
        inquiry = _Inquiry(self._name)
        for place in [*self._places]:
            with inquiry.noting(place):
                connection = await connected(self._scheme, self._at(place))
                try:
                    answer = await ask(connection, *_QUESTION, self._name)
                finally:
                    drop(connection)
                return self._believed(place, answer)
        raise inquiry.failed()

    def _primary_blocking(self) -> dict[str, Any]:
        inquiry = _Inquiry(self._name)
        for place in [*self._places]:
            with inquiry.noting(place):
                connection = connected_blocking(self._scheme, self._at(place))
                try:
                    connection.send_command(*_QUESTION, self._name)
                    answer = connection.read_response()
                finally:
                    connection.disconnect()
                return self._believed(place, answer)
        raise inquiry.failed()

    def _at(self, place: Place) -> dict[str, Any]:
        return self._options | {"host": place[0], "port": place[1]}

    def _believed(self, place: Place, answer: Any) -> dict[str, Any]:
        if not answer:
            raise NotConnected(f"it watches no {self._name!r}")
        self._places.remove(place)
        self._places.insert(0, place)
        return {"host": text(answer[0]), "port": int(answer[1])}


class _Inquiry:
    """What each Sentinel said that could not help."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._said: list[str] = []

    @contextmanager
    def noting(self, place: Place) -> Iterator[None]:
        """One that cannot be asked is noted, and the next one asked."""
        try:
            yield
        except (RedisError, OSError) as error:
            self._said.append(f"{place[0]}:{place[1]}: {error}")

    def failed(self) -> NotConnected:
        """None of them could help."""
        return NotConnected(f"no Sentinel tells where {self._name!r} is ({'; '.join(self._said)})")


def _check(role: Any) -> None:
    """Raises ConnectionError when the server is no primary (any more, or yet)."""
    if text(role[0]) != "master":
        raise NotConnected("a failover is under way: the server it named is no primary")
