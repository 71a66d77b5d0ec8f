"""Where scenario tests run: on a SQLite file, and on a PostgreSQL server of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from desk import Desk
from servers import PrivatePostgres, private_postgres

from umbel import Umbel


@pytest.fixture
def server() -> Iterator[PrivatePostgres]:
    with private_postgres() as server:
        asyncio.run(Umbel(server.url, namespace="scenario").site.migrate())
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/umbel.db"
    server: PrivatePostgres = request.getfixturevalue("server")
    return server.url


@pytest.fixture
def desk(url: str) -> Iterator[Desk]:
    desk = Desk(url)
    yield desk
    desk.close()
