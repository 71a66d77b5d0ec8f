"""Where the data is: a server, or one of its databases."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.exceptions import ResponseError

from umbel.backends.redis.connections import (
    Blocking,
    Connection,
    ask,
    connected,
    connected_blocking,
)
from umbel.backends.redis.durability import verdict
from umbel.backends.redis.errors import explaining
from umbel.backends.redis.listener import Listener
from umbel.backends.redis.sentinels import Place, Sentinels
from umbel.backends.redis.values import text, whole
from umbel.errors import ConfigurationError
from umbel.urls import unknown_options

_SCHEMES = {
    "redis": "redis",
    "valkey": "redis",
    "rediss": "rediss",
    "valkeys": "rediss",
    "unix": "unix",
    "redis+unix": "unix",
    "valkey+unix": "unix",
    "redis+sentinel": "redis",
    "valkey+sentinel": "redis",
    "rediss+sentinel": "rediss",
    "valkeys+sentinel": "rediss",
}
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_SENTINEL = {"sentinel_username": "username", "sentinel_password": "password"}
_OPTIONS = ("db", "username", "password", "client_name", "connect_timeout", "poll", *_TLS)
_SETTINGS = ("appendonly", "appendfsync", "save", "maxmemory", "maxmemory-policy")


class Home:
    """The address of a server. Shared by every ``Database`` of an application.

    ``redis://user:password@host:6379/0``, ``rediss://`` with TLS, ``unix:///path?db=0``; Valkey's
    ``valkey://`` and ``valkeys://`` mean the same. ``redis+sentinel://one:26379,two:26379/name/0``
    is whichever server these Sentinels call the primary of that name. ``poll`` is how often to look
    while no hints come in, because the connection for them is being made.

    Raises:
        ConfigurationError: the URL is wrong; it names the part.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES:
            raise ConfigurationError(
                f"{parts.scheme}://: a Redis URL begins with redis://, rediss://, valkey:// or unix://"
            )
        self._scheme = _SCHEMES[parts.scheme]
        watched = parts.scheme.endswith("+sentinel")
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        known = (*_OPTIONS, *_SENTINEL) if watched else _OPTIONS
        unknown = given.keys() - set(known)
        if unknown:
            raise ConfigurationError(
                f"the Redis URL: unknown option {unknown_options(unknown, url)};"
                f" there are {', '.join(known)}"
            )
        self.poll = _seconds("poll", given.pop("poll", "0.25"))
        words = {_SENTINEL[name]: given.pop(name) for name in _SENTINEL if name in given}
        self._options = _options(self._scheme, given)
        self._sentinels: Sentinels | None = None
        if watched:
            places, name, number = _watched(parts.netloc, parts.path)
            apart = {"username", "password", "db"}
            shared = {n: value for n, value in self._options.items() if n not in apart}
            self._sentinels = Sentinels(self._scheme, places, name, shared | words)
            self._options |= {"socket_keepalive": True} | ({"db": number} if number else {})
            self.address = _called(places, name, self._scheme)
        else:
            where, self.address = _where(self._scheme, parts.hostname, _port(url), parts.path)
            self._options |= where
        for name, value in (("username", parts.username), ("password", parts.password)):
            if value:
                self._options[name] = unquote(value)
        self._listeners: dict[tuple[int, asyncio.AbstractEventLoop], Listener] = {}

    async def connect(self) -> Connection:
        """A new connection, ready for use. Raises redis-py's errors."""
        if self._sentinels is not None:
            return await self._sentinels.connect(self._options)
        return await connected(self._scheme, self._options)

    def connect_blocking(self) -> Blocking:
        """The same for a thread that may wait."""
        if self._sentinels is not None:
            return self._sentinels.connect_blocking(self._options)
        return connected_blocking(self._scheme, self._options)

    def listener(self) -> Listener:
        """The one listener of this process's running event loop."""
        # Keyed by the process: a child must not touch the listener it inherited.
        here = (os.getpid(), asyncio.get_running_loop())
        if here not in self._listeners:
            self._listeners[here] = Listener(self.connect, lambda: self._forget(here))
        return self._listeners[here]

    def _forget(self, here: tuple[int, asyncio.AbstractEventLoop]) -> None:
        self._listeners.pop(here, None)

    async def durability(self) -> str:
        """What is lost when the server dies, in a sentence for people.

        Raises:
            Unavailable: the server cannot be reached.
        """
        with explaining(self.address):
            connection = await self.connect()
            try:
                return verdict(await _settings(connection), await _replicas(connection))
            finally:
                await connection.disconnect()


async def _settings(connection: Connection) -> dict[str, str]:
    """What the server tells of its settings: nothing where CONFIG is forbidden."""
    found: dict[str, str] = {}
    for name in _SETTINGS:
        try:
            answer = await ask(connection, "CONFIG", "GET", name)
        except ResponseError:
            return await _from_info(connection)
        if len(answer) == 2:
            found[name] = text(answer[1])
    return found


async def _from_info(connection: Connection) -> dict[str, str]:
    found = await _info(connection, "persistence") | await _info(connection, "memory")
    told: dict[str, str] = {}
    if "aof_enabled" in found:
        told["appendonly"] = "yes" if found["aof_enabled"] == "1" else "no"
    if "maxmemory_policy" in found:
        told["maxmemory-policy"] = found["maxmemory_policy"]
        told["maxmemory"] = found.get("maxmemory", "0")
    return told


async def _replicas(connection: Connection) -> int | None:
    found = await _info(connection, "replication")
    return whole(found["connected_slaves"].encode()) if "connected_slaves" in found else None


async def _info(connection: Connection, section: str) -> dict[str, str]:
    try:
        answer = text(await ask(connection, "INFO", section))
    except ResponseError:
        return {}
    pairs = (line.partition(":") for line in answer.splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}


def _options(scheme: str, given: dict[str, str]) -> dict[str, Any]:
    timeout = _seconds("connect_timeout", given.pop("connect_timeout", "2"))
    options: dict[str, Any] = {"client_name": "umbel", **given, "socket_connect_timeout": timeout}
    if "db" in given:
        options["db"] = _database(given["db"])
    tls = [name for name in _TLS if name in given]
    if tls and scheme != "rediss":
        raise ConfigurationError(f"the Redis URL: {tls[0]} is for rediss://, with TLS")
    needed = given.get("ssl_cert_reqs", "required")
    if needed not in ("none", "optional", "required"):
        raise ConfigurationError(f"ssl_cert_reqs={needed!r}: give none, optional or required")
    if "ssl_check_hostname" in given:
        options["ssl_check_hostname"] = _flag("ssl_check_hostname", given["ssl_check_hostname"])
    return options


def _where(
    scheme: str, host: str | None, port: int | None, path: str
) -> tuple[dict[str, Any], str]:
    """What redis-py is to connect to, and how to call it in a text: never with the password."""
    if scheme == "unix":
        if not path.strip("/"):
            raise ConfigurationError(
                "the Redis URL: give the socket's path, unix:///run/redis.sock"
            )
        return {"path": unquote(path)}, f"Redis at {unquote(path)}"
    found: dict[str, Any] = {
        "host": host or "localhost",
        "port": port or 6379,
        # A peer that vanished without a word is noticed.
        "socket_keepalive": True,
    }
    number = path.strip("/")
    if number:
        found["db"] = _database(number)
    how = " with TLS" if scheme == "rediss" else ""
    return found, f"Redis at {found['host']}:{found['port']}{how}"


def _watched(netloc: str, path: str) -> tuple[list[Place], str, int]:
    """The Sentinels' places, the primary's name and the database."""
    name, _, number = path.strip("/").partition("/")
    if not name:
        raise ConfigurationError(
            "the Redis URL: give the name that the Sentinels know the primary by, as in"
            " redis+sentinel://host:26379/mymaster/0"
        )
    places = [urlsplit(f"//{one}") for one in netloc.rpartition("@")[2].split(",")]
    found = [(one.hostname or "localhost", _port(one.geturl()) or 26379) for one in places]
    return found, unquote(name), _database(number) if number else 0


def _called(places: Sequence[Place], name: str, scheme: str) -> str:
    how = " with TLS" if scheme == "rediss" else ""
    told = ", ".join(f"{host}:{port}" for host, port in places)
    return f"Redis {name!r} by the Sentinels at {told}{how}"


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        raise ConfigurationError("the Redis URL: the port must be a number") from None


def _database(number: str) -> int:
    if not number.isdecimal():
        raise ConfigurationError(
            f"db={number!r}: give the number of a database, as in redis://host/0"
        )
    return int(number)


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise ConfigurationError(f"{name}={value!r}: give true or false")
    return value == "true"


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 3600:
        raise ConfigurationError(f"{name}={value!r}: give seconds, 0.01 or more")
    return seconds
