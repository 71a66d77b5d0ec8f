"""The adapters on Redis for the suites, as one process opens them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

from local_servers import NEVER, REDIS_URL

from umbel.backends.redis.address import RedisAddress
from umbel.backends.redis.control import RedisControl
from umbel.backends.redis.coordination import RedisCoordination
from umbel.backends.redis.database import Database
from umbel.backends.redis.gates import RedisGates
from umbel.backends.redis.job_store import RedisJobStore
from umbel.backends.redis.joins import RedisJoins
from umbel.backends.redis.records import RedisRecords
from umbel.backends.redis.registry import RedisRegistry
from umbel.backends.redis.routes import RedisRoutes
from umbel.backends.redis.scripts import root_of
from umbel.backends.redis.steps import RedisSteps
from umbel.clock import Clock, SystemClock
from umbel.testing import Adapters, wrong_clocks

Scenario = Callable[[Adapters], Coroutine[Any, Any, None]]
_CLOCKS = wrong_clocks(__name__)


@asynccontextmanager
async def open_redis(
    namespace: str,
    clocks: Iterator[Clock] = _CLOCKS,
    *,
    safety_poll: float = NEVER,
    prefix: str = "",
) -> AsyncIterator[Adapters]:
    """Open one process's adapters on Redis. Their namespace starts with the prefix."""
    namespace = namespace if namespace.startswith(prefix) else prefix + namespace
    database = Database(RedisAddress(REDIS_URL))
    how = {"namespace": namespace, "clock": next(clocks)}

    def another(other: str | None = None) -> Any:
        return open_redis(other or namespace, clocks, safety_poll=safety_poll, prefix=prefix)

    try:
        yield Adapters(
            broker=RedisJobStore(database, **how, safety_poll=safety_poll),
            records=RedisRecords(database, **how, safety_poll=safety_poll),
            registry=RedisRegistry(database, **how),
            control=RedisControl(database, **how),
            gates=RedisGates(database, **how),
            steps=RedisSteps(database, **how),
            routes=RedisRoutes(database, **how),
            joins=RedisJoins(database, **how),
            coordination=RedisCoordination(database, **how, safety_poll=safety_poll),
            clock=SystemClock(),
            namespace=namespace,
            another=another,
        )
    finally:
        await database.close()


def run_on_redis(
    namespace: str, scenario: Scenario, *, safety_poll: float = NEVER, timeout: float = 60.0
) -> None:
    """Run a test with the adapters of one process."""

    async def main() -> None:
        async with asyncio.timeout(timeout):
            async with open_redis(namespace, safety_poll=safety_poll) as backend:
                await scenario(backend)

    asyncio.run(main())


def make_due(client: Any, namespace: str) -> None:
    """Make all scheduled jobs due. The clock of the server cannot be moved."""
    for key in client.scan_iter(match=f"{root_of(namespace)}:due:*", count=1000):
        for job in client.zrange(key, 0, -1):
            client.zadd(key, {job: 0})
