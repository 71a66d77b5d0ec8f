"""The address of a Redis server: where it is, which database, and how to log in."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.exceptions import ResponseError

from umbel.backends.redis.connections import (
    Connection,
    SyncConnection,
    connect,
    connect_blocking,
    execute,
)
from umbel.backends.redis.durability import describe_durability
from umbel.backends.redis.errors import translate_errors
from umbel.backends.redis.listener import Listener
from umbel.backends.redis.sentinels import HostPort, Sentinels
from umbel.backends.redis.values import integer, text
from umbel.backends.url_options import parse_flag, parse_seconds
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
_TLS_OPTIONS = (
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
)
_SENTINEL_LOGIN = {"sentinel_username": "username", "sentinel_password": "password"}
_OPTIONS = ("db", "username", "password", "client_name", "connect_timeout", "poll", *_TLS_OPTIONS)
_DURABILITY_SETTINGS = ("appendonly", "appendfsync", "save", "maxmemory", "maxmemory-policy")


class RedisAddress:
    """The address of a server. Shared by every ``Database`` of an application.

    ``redis://user:password@host:6379/0``, ``rediss://`` with TLS, ``redis+unix:///path?db=0``;
    Valkey's ``valkey://`` and ``valkeys://`` mean the same. ``redis+sentinel://one:26379,two:26379/name/0``
    is the server that these Sentinels name as the primary. ``poll`` is the time between checks
    while wake-ups cannot arrive because their connection is being opened.

    Raises:
        ConfigurationError: the URL is wrong; the message names the part.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES:
            raise ConfigurationError(
                f"{parts.scheme}://: a Redis URL begins with redis://, rediss://, valkey:// or redis+unix://"
            )
        self._scheme = _SCHEMES[parts.scheme]
        has_sentinels = parts.scheme.endswith("+sentinel")
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        known = (*_OPTIONS, *_SENTINEL_LOGIN) if has_sentinels else _OPTIONS
        unknown = given.keys() - set(known)
        if unknown:
            raise ConfigurationError(
                f"the Redis URL: unknown option {unknown_options(unknown, url)};"
                f" there are {', '.join(known)}"
            )
        self.poll = parse_seconds("poll", given.pop("poll", "0.25"))
        login = {
            _SENTINEL_LOGIN[name]: given.pop(name) for name in _SENTINEL_LOGIN if name in given
        }
        self._options = _parse_options(self._scheme, given)
        self._sentinels: Sentinels | None = None
        if has_sentinels:
            sentinels, name, number = _parse_sentinels(parts.netloc, parts.path)
            primary_only = {"username", "password", "db"}
            shared = {n: value for n, value in self._options.items() if n not in primary_only}
            self._sentinels = Sentinels(self._scheme, sentinels, name, shared | login)
            self._options |= {"socket_keepalive": True} | ({"db": number} if number else {})
            self.label = _describe_sentinels(sentinels, name, self._scheme)
        else:
            port = _parse_port(url)
            server, self.label = _parse_server(self._scheme, parts.hostname, port, parts.path)
            self._options |= server
        for name, value in (("username", parts.username), ("password", parts.password)):
            if value:
                self._options[name] = unquote(value)
        self._listeners: dict[tuple[int, asyncio.AbstractEventLoop], Listener] = {}

    async def connect(self) -> Connection:
        """Return a new connection, ready for use. Raises redis-py's errors."""
        if self._sentinels is not None:
            return await self._sentinels.connect(self._options)
        return await connect(self._scheme, self._options)

    def connect_blocking(self) -> SyncConnection:
        """Return a new blocking connection, ready for use. Raises redis-py's errors."""
        if self._sentinels is not None:
            return self._sentinels.connect_blocking(self._options)
        return connect_blocking(self._scheme, self._options)

    def listener(self) -> Listener:
        """Return the one listener of the running event loop."""
        # The key has the process id: a child must not use the listener of its parent.
        key = (os.getpid(), asyncio.get_running_loop())
        if key not in self._listeners:
            self._listeners[key] = Listener(self.connect, lambda: self._forget(key))
        return self._listeners[key]

    def _forget(self, key: tuple[int, asyncio.AbstractEventLoop]) -> None:
        self._listeners.pop(key, None)

    async def durability(self) -> str:
        """Return a sentence that says which data is lost if the server dies.

        Raises:
            Unavailable: the server cannot be reached.
        """
        with translate_errors(self.label):
            connection = await self.connect()
            try:
                settings = await _read_settings(connection)
                return describe_durability(settings, await _count_replicas(connection))
            finally:
                await connection.disconnect()


async def _read_settings(connection: Connection) -> dict[str, str]:
    """Return the server's settings, as far as this user may read them."""
    settings: dict[str, str] = {}
    for name in _DURABILITY_SETTINGS:
        try:
            answer = await execute(connection, "CONFIG", "GET", name)
        except ResponseError:
            return await _settings_from_info(connection)
        if len(answer) == 2:
            settings[name] = text(answer[1])
    return settings


async def _settings_from_info(connection: Connection) -> dict[str, str]:
    found = await _read_info(connection, "persistence") | await _read_info(connection, "memory")
    settings: dict[str, str] = {}
    if "aof_enabled" in found:
        settings["appendonly"] = "yes" if found["aof_enabled"] == "1" else "no"
    if "maxmemory_policy" in found:
        settings["maxmemory-policy"] = found["maxmemory_policy"]
        settings["maxmemory"] = found.get("maxmemory", "0")
    return settings


async def _count_replicas(connection: Connection) -> int | None:
    found = await _read_info(connection, "replication")
    return integer(found["connected_slaves"].encode()) if "connected_slaves" in found else None


async def _read_info(connection: Connection, section: str) -> dict[str, str]:
    try:
        answer = text(await execute(connection, "INFO", section))
    except ResponseError:
        return {}
    pairs = (line.partition(":") for line in answer.splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}


def _parse_options(scheme: str, given: dict[str, str]) -> dict[str, Any]:
    timeout = parse_seconds("connect_timeout", given.pop("connect_timeout", "2"))
    options: dict[str, Any] = {"client_name": "umbel", **given, "socket_connect_timeout": timeout}
    if "db" in given:
        options["db"] = _parse_database(given["db"])
    tls = [name for name in _TLS_OPTIONS if name in given]
    if tls and scheme != "rediss":
        raise ConfigurationError(f"the Redis URL: {tls[0]} is for rediss://, with TLS")
    requirement = given.get("ssl_cert_reqs", "required")
    if requirement not in ("none", "optional", "required"):
        raise ConfigurationError(f"ssl_cert_reqs={requirement!r}: give none, optional or required")
    if "ssl_check_hostname" in given:
        options["ssl_check_hostname"] = parse_flag(
            "ssl_check_hostname", given["ssl_check_hostname"]
        )
    return options


def _parse_server(
    scheme: str, host: str | None, port: int | None, path: str
) -> tuple[dict[str, Any], str]:
    """Return redis-py's options for the server, and its label, which never has the password."""
    if scheme == "unix":
        if not path.strip("/"):
            raise ConfigurationError(
                "the Redis URL: give the socket's path, redis+unix:///run/redis.sock"
            )
        return {"path": unquote(path)}, f"Redis at {unquote(path)}"
    options: dict[str, Any] = {
        "host": host or "localhost",
        "port": port or 6379,
        # Detects a server that disappeared without closing the connection.
        "socket_keepalive": True,
    }
    number = path.strip("/")
    if number:
        options["db"] = _parse_database(number)
    tls = " with TLS" if scheme == "rediss" else ""
    return options, f"Redis at {options['host']}:{options['port']}{tls}"


def _parse_sentinels(netloc: str, path: str) -> tuple[list[HostPort], str, int]:
    """Return the hosts and ports of the Sentinels, the primary's name and the database."""
    name, _, number = path.strip("/").partition("/")
    if not name:
        raise ConfigurationError(
            "the Redis URL: give the name that the Sentinels know the primary by, as in"
            " redis+sentinel://host:26379/mymaster/0"
        )
    parsed = [urlsplit(f"//{one}") for one in netloc.rpartition("@")[2].split(",")]
    found = [(one.hostname or "localhost", _parse_port(one.geturl()) or 26379) for one in parsed]
    return found, unquote(name), _parse_database(number) if number else 0


def _describe_sentinels(sentinels: Sequence[HostPort], name: str, scheme: str) -> str:
    tls = " with TLS" if scheme == "rediss" else ""
    hosts = ", ".join(f"{host}:{port}" for host, port in sentinels)
    return f"Redis {name!r} by the Sentinels at {hosts}{tls}"


def _parse_port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        raise ConfigurationError("the Redis URL: the port must be a number") from None


def _parse_database(number: str) -> int:
    if not number.isdecimal():
        raise ConfigurationError(
            f"db={number!r}: give the number of a database, as in redis://host/0"
        )
    return int(number)
