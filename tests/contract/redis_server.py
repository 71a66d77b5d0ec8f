"""Redis servers that a test starts itself, and a broker with a registered worker on them."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from local_servers import NEVER

from umbel.backends import (
    Demand,
    WorkerEntry,
)
from umbel.backends.redis.address import RedisAddress
from umbel.backends.redis.broker import RedisBroker
from umbel.backends.redis.database import Database
from umbel.backends.redis.registry import RedisRegistry
from umbel.backends.redis.scripts import root_of
from umbel.clock import SystemClock
from umbel.messages import (
    JSON,
    Attempt,
    Body,
    Delivery,
    Envelope,
    Settlement,
    Succeeded,
    fresh_id,
)

BINARY = shutil.which("redis-server") or shutil.which("valkey-server")
OWNER = "incarnation-1"
PLENTY = Demand.of(io=100, cpu=100)
needs_server = pytest.mark.skipif(BINARY is None, reason="not run: there is no redis-server here")


class RedisServer:
    """A server that belongs to one test."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.folder = folder
        self.options = options
        self.url = f"redis://127.0.0.1:{self.port}"
        self.socket = folder / "redis.sock"
        self.start()

    def start(self) -> None:
        command = [str(BINARY), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(self.folder), "--unixsocket", str(self.socket)]
        command += ["--daemonize", "no", *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 1),
                socket.socket(socket.AF_UNIX) as local,  # it is opened after the port
            ):
                local.connect(str(self.socket))
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError("the server did not start")

    def client(self, **options: Any) -> Any:
        return redis.Redis(port=self.port, **options)

    def do(self, *command: Any) -> Any:
        with self.client() as client:
            return client.execute_command(*command)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    """Return a port that is free, as is the port ten thousand above it, for a cluster's bus.

    Both are below the ports that the kernel gives to connections.
    """
    while True:
        port = random.randint(15_000, 22_000)
        with socket.socket() as probe, socket.socket() as bus, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + 10_000))
            return port


def entry(incarnation: str = OWNER) -> WorkerEntry:
    return WorkerEntry(
        incarnation=incarnation,
        name="w",
        host="h",
        pid=1,
        queues=("q",),
        capacity={"io": 1, "cpu": 1},
        lease=10.0,
    )


def envelope(**fields: Any) -> Envelope:
    body = Body(JSON, b'{"args": [], "kwargs": {}}')
    return Envelope(**{"id": fresh_id(), "subject": "t", "queue": "q", "body": body, **fields})


def settlement(one: Delivery) -> Settlement:
    attempt = Attempt(1, "w", 0.0, 1.0, "succeeded")
    return Settlement(lease=one.lease, outcome=Succeeded(), attempt=attempt)


class TestedBroker(RedisBroker):
    """A broker whose database a test can use, too."""

    __test__ = False

    def __init__(self, database: Database, **options: Any) -> None:
        super().__init__(database, **options)
        self.database = database


@asynccontextmanager
async def broker_at(
    url: str, *, safety_poll: float = NEVER, timeout: float = 10.0, owner: str = OWNER
) -> AsyncIterator[TestedBroker]:
    """Open a broker and register a worker."""
    database, clock = Database(RedisAddress(url), timeout=timeout), SystemClock()
    broker = TestedBroker(database, namespace="umbel", clock=clock, safety_poll=safety_poll)
    await RedisRegistry(database, namespace="umbel", clock=clock).register(entry(owner))
    try:
        yield broker
    finally:
        await broker.close()


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(15):
        while not holds():
            await asyncio.sleep(0.01)


async def waiting_fetch(
    broker: TestedBroker, owner: str = OWNER, demand: Demand = PLENTY
) -> asyncio.Task[list[Delivery]]:
    """Start a fetch that finds nothing, and that only a wake-up can end early."""
    task = asyncio.create_task(broker.fetch(["q"], demand, owner, 30))
    await until(lambda: is_subscribed(broker))
    await asyncio.sleep(0.05)
    return task


def is_subscribed(broker: TestedBroker) -> bool:
    root = root_of("umbel")
    return broker.database.listener(root).is_subscribed(root)
