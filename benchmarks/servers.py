"""The servers: whether they answer, and what they say of themselves."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import nats
import pika  # type: ignore[import-untyped]
import psycopg
import redis

from benchmarks.systems import LABELS, Database

Servers = Mapping[Database, str]
"""Their addresses."""

HERE: Servers = {
    "postgresql": "postgresql://postgres@127.0.0.1:5432/postgres",
    "redis": "redis://127.0.0.1:6379",
    "rabbitmq": "amqp://guest:guest@127.0.0.1:5672",
    "nats": "nats://127.0.0.1:4222",
}
"""Where they usually are."""
_OPTIONS = {"postgresql": "--database"}
_PATIENCE = 3
_POSTGRES = ("fsync", "synchronous_commit", "wal_sync_method", "full_page_writes", "shared_buffers")
_REDIS = ("appendonly", "appendfsync", "save")


def trouble(database: Database, url: str) -> str | None:
    """Why nothing can be measured there, and what to do; None if it answers."""
    try:
        about(database, url)
    except Exception as error:  # each library has errors of its own, and pika some without a base
        reason = (str(error).strip() or repr(error)).splitlines()[0]
    else:
        if database != "rabbitmq" or shutil.which("rabbitmqctl"):
            return None
        reason = "there is no rabbitmqctl to make a virtual host with"
    option = _OPTIONS.get(database, f"--{database}")
    remedy = f"start one with `make servers`, name one with {option}, or leave it out with --on"
    return f"No {LABELS[database]} to measure on: {reason}. To go on, {remedy}."


def about(database: Database, url: str) -> str:
    """Its version, and how it keeps its data. Raises its library's errors."""
    return _ABOUT[database](url)


def _postgres(url: str) -> str:
    with psycopg.connect(url, connect_timeout=_PATIENCE) as connection:
        show = [connection.execute(f"show {name}").fetchone() for name in _POSTGRES]
        release = connection.info.server_version
    settings = zip(_POSTGRES, show, strict=True)
    told = ", ".join(f"{name}={row[0]}" for name, row in settings if row)
    return f"{release // 10_000}.{release % 10_000}; {told}"


def _redis(url: str) -> str:
    with redis.Redis.from_url(url, socket_connect_timeout=_PATIENCE) as client:
        server: Any = client.info("server")
        settings: Any = client.config_get(*_REDIS)
    told = ", ".join(f"{name}={settings[name] or 'never'}" for name in _REDIS if name in settings)
    return f"{server['redis_version']}; {told}"


def _rabbitmq(url: str) -> str:
    parameters = pika.URLParameters(url)
    parameters.socket_timeout = parameters.stack_timeout = _PATIENCE
    connection = pika.BlockingConnection(parameters)
    try:
        version = connection._impl.server_properties["version"]
    finally:
        connection.close()
    return f"{version}; durable queues, persistent messages"


def _nats(url: str) -> str:
    return asyncio.run(_ask_nats(url))


async def _ask_nats(url: str) -> str:
    # Without a word on it, nats-py tries for two minutes to reach a server that is not there.
    client = await nats.connect(
        url, connect_timeout=_PATIENCE, allow_reconnect=False, max_reconnect_attempts=1
    )
    try:
        await client.jetstream().account_info()
        version = client.connected_server_version
        release = f"{version.major}.{version.minor}.{version.patch}"
        return f"{release}; JetStream, streams in files"
    finally:
        await client.close()


_ABOUT: dict[Database, Callable[[str], str]] = {
    "postgresql": _postgres,
    "redis": _redis,
    "rabbitmq": _rabbitmq,
    "nats": _nats,
}
