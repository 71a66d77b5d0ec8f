"""The backends of scenario tests: a SQLite file and a private PostgreSQL server.

UMBEL_SCENARIO_ON selects others: redis and nats+postgres on private servers, and rabbitmq+postgres
on the usual local port.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from scenario_client import Client
from servers import PrivatePostgres, private_postgres

from chaos.server_processes import Nats, NotAvailable, Redis
from umbel import Umbel
from umbel.messages import fresh_id


@pytest.fixture
def server() -> Iterator[PrivatePostgres]:
    with private_postgres() as server:
        asyncio.run(Umbel(server.url, namespace="scenario").backend.migrate())
        yield server


class RedisWithoutPersistence(Redis):
    """It loses its data on a restart. These tests kill only workers."""

    def command(self) -> list[str]:
        return [*super().command(), "--appendonly", "no"]


@contextmanager
def running_server(kind: type[Redis | Nats], folder: Path) -> Iterator[str]:
    """Start a private server: the messages of another test would be unknown to a new database."""
    try:
        server = kind(folder)
        server.start()
    except NotAvailable as why:
        pytest.skip(str(why))
    try:
        yield server.url
    finally:
        server.stop("killed")


@contextmanager
def virtual_host() -> Iterator[str]:
    """Create a private virtual host on the local RabbitMQ server."""
    name = f"umbel-scenario-{os.getpid()}-{fresh_id()[-6:]}"
    rabbitmqctl = partial(subprocess.run, check=True, stdout=subprocess.DEVNULL, cwd="/")
    rabbitmqctl(["rabbitmqctl", "-q", "add_vhost", name])
    try:
        rabbitmqctl(["rabbitmqctl", "-q", "set_permissions", "-p", name, "guest", *[".*"] * 3])
        yield f"amqp://guest:guest@127.0.0.1:5672/{name}"
    finally:
        rabbitmqctl(["rabbitmqctl", "-q", "delete_vhost", name])


@pytest.fixture(params=os.environ.get("UMBEL_SCENARIO_ON", "sqlite,postgres").split(","))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/umbel.db"
        return
    transport, _, store = request.param.rpartition("+")
    with ExitStack() as stack:
        here = Path(stack.enter_context(TemporaryDirectory(prefix="umbel-scenario-")))
        if store == "redis":
            yield stack.enter_context(running_server(RedisWithoutPersistence, here))
            return
        server: PrivatePostgres = request.getfixturevalue("server")
        if transport == "nats":
            yield f"{stack.enter_context(running_server(Nats, here))}|{server.url}"
        elif transport == "rabbitmq":
            yield f"{stack.enter_context(virtual_host())}|{server.url}"
        else:
            yield server.url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    client = Client(url)
    yield client
    client.close()
