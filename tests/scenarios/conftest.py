"""Where scenario tests run: on a SQLite file, and on a PostgreSQL server of their own.

UMBEL_SCENARIO_ON names others: redis and nats+postgres on servers of their own, and
rabbitmq+postgres on the usual local port.
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
from desk import Client
from servers import PrivatePostgres, private_postgres

from chaos.machines import Nats, NotHere, Redis
from umbel import Umbel
from umbel.messages import fresh_id


@pytest.fixture
def server() -> Iterator[PrivatePostgres]:
    with private_postgres() as server:
        asyncio.run(Umbel(server.url, namespace="scenario").backend.migrate())
        yield server


class Forgetful(Redis):
    """It keeps nothing over a restart: here only workers die."""

    def command(self) -> list[str]:
        return [*super().command(), "--appendonly", "no"]


@contextmanager
def machine(kind: type[Redis | Nats], folder: Path) -> Iterator[str]:
    """A server of the test's own: what another has left there would be news to a new database."""
    try:
        server = kind(folder)
        server.start()
    except NotHere as why:
        pytest.skip(str(why))
    try:
        yield server.url
    finally:
        server.stop("killed")


@contextmanager
def virtual_host() -> Iterator[str]:
    """One of the test's own on the RabbitMQ that runs here."""
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
    carrier, _, store = request.param.rpartition("+")
    with ExitStack() as stack:
        here = Path(stack.enter_context(TemporaryDirectory(prefix="umbel-scenario-")))
        if store == "redis":
            yield stack.enter_context(machine(Forgetful, here))
            return
        server: PrivatePostgres = request.getfixturevalue("server")
        if carrier == "nats":
            yield f"{stack.enter_context(machine(Nats, here))}|{server.url}"
        elif carrier == "rabbitmq":
            yield f"{stack.enter_context(virtual_host())}|{server.url}"
        else:
            yield server.url


@pytest.fixture
def desk(url: str) -> Iterator[Client]:
    desk = Client(url)
    yield desk
    desk.close()
