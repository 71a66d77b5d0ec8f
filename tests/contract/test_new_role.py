"""What a new role costs: a named counter with a watch, on coordination, without adapter code."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from local_servers import POSTGRES_URL, REDIS_URL

from umbel import Umbel
from umbel.backends import Coordination, Put
from umbel.messages import fresh_id


class Counter:
    """A counter of a name that every process of a namespace can change and watch."""

    def __init__(self, coordination: Coordination, name: str) -> None:
        self._coordination = coordination
        self._key = f"counters/{name}"

    async def add(self, many: int) -> int:
        """Add to the counter; return its new value."""
        while True:
            value, check, _ = await self._read()
            put = Put(self._key, b"%d" % (value + many))
            if await self._coordination.commit({self._key: check}, [put]) is not None:
                return value + many

    async def wait_until(self, value: int, wait: float) -> bool:
        """Wait up to ``wait`` seconds until the counter has a value or a greater one."""
        while True:
            found, _, revision = await self._read()
            if found >= value:
                return True
            if not await self._coordination.changed({self._key: revision}, wait):
                return False

    async def _read(self) -> tuple[int, int, int]:
        page = await self._coordination.read(self._key)
        for entry in page.entries:
            if entry.key == self._key:
                return int(entry.value), entry.revision, page.revision
        return 0, 0, page.revision


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_a_counter_with_a_watch_is_a_class_above_coordination(store: str, tmp_path: Path) -> None:
    url = {"sqlite": f"sqlite:///{tmp_path}/umbel.db", "postgres": POSTGRES_URL, "redis": REDIS_URL}
    app = Umbel(url[store], namespace=f"counter-{fresh_id()}")

    async def count() -> None:
        await app.backend.migrate()
        one, other = app.backend.open(), app.backend.open()
        try:
            counter, same = Counter(one.coordination, "n"), Counter(other.coordination, "n")
            waiting = asyncio.create_task(same.wait_until(20, 30))
            await asyncio.gather(*(who.add(1) for who in [counter, same] * 10))
            assert await waiting
            assert await counter.add(0) == 20
            assert not await same.wait_until(21, 0.05)
        finally:
            await one.coordination.commit({}, deletes=["counters/n"])
            await one.close()
            await other.close()

    asyncio.run(count())
    app.close()
