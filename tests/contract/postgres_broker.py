"""A broker on PostgreSQL with a registered worker, and what tests do with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from local_servers import NEVER, POSTGRES_URL

from umbel.backends import WorkerEntry
from umbel.backends.broker import Demand
from umbel.backends.postgres.address import PostgresAddress
from umbel.backends.postgres.broker import PostgresBroker
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.registry import PostgresRegistry
from umbel.clock import SystemClock
from umbel.messages import (
    JSON,
    Body,
    Envelope,
    fresh_id,
)

OWNER = "incarnation-1"
QUICK = 30.0
"""Seconds after which a call is considered to hang: far fewer than between safety polls."""


def connect() -> Any:
    return psycopg.connect(POSTGRES_URL, autocommit=True, connect_timeout=2)


class TestedBroker(PostgresBroker):
    """A broker whose database a test can use, too."""

    __test__ = False

    def __init__(self, database: Database, **options: Any) -> None:
        super().__init__(database, **options)
        self.database = database


@asynccontextmanager
async def broker_at(
    address: PostgresAddress, safety_poll: float = NEVER
) -> AsyncIterator[TestedBroker]:
    """Open a broker and register a worker."""
    database, clock = Database(address), SystemClock()
    broker = TestedBroker(database, namespace="umbel", clock=clock, safety_poll=safety_poll)
    registry = PostgresRegistry(database, namespace="umbel", clock=clock)
    await registry.register(
        WorkerEntry(
            incarnation=OWNER,
            name="w",
            host="h",
            pid=1,
            queues=("q",),
            capacity={"io": 1, "cpu": 1},
            lease=10.0,
        )
    )
    try:
        yield broker
    finally:
        await broker.close()


def envelope(**fields: Any) -> Envelope:
    body = Body(JSON, b'{"args": [], "kwargs": {}}')
    return Envelope(**{"id": fresh_id(), "subject": "t", "queue": "q", "body": body, **fields})


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(QUICK):
        while not holds():
            await asyncio.sleep(0.005)


async def waiting_fetch(broker: TestedBroker) -> asyncio.Task[list[Any]]:
    """Start a fetch that finds nothing, and that only a wake-up can end early."""
    await broker.fetch(["q"], Demand.of(io=10, cpu=10), OWNER, 0)  # starts the listener
    await until(lambda: broker.database.listener().is_listening)
    await broker.fetch(
        ["q"], Demand.of(io=10, cpu=10), OWNER, 0.01
    )  # what it rang for is looked at
    task = asyncio.create_task(broker.fetch(["q"], Demand.of(io=10, cpu=10), OWNER, 30))
    await asyncio.sleep(0)
    return task


async def quickly(task: asyncio.Task[list[Any]]) -> list[Any]:
    async with asyncio.timeout(QUICK):
        return await task


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)
