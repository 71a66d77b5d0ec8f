"""A limit to how many pages are read from the store at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MAX_READS = 4
MAX_WAIT_SECONDS = 2.0


class TooBusy(Exception):
    """Too many pages are read already. The client should try again after some seconds."""


class ReadLimit:
    """Lets a few reads run at a time; others wait, but not for long."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MAX_READS)

    @asynccontextmanager
    async def read(self, seconds: float | None = MAX_WAIT_SECONDS) -> AsyncIterator[None]:
        """Run a block when a read is free; None waits for as long as it takes.

        Raises:
            TooBusy: no read became free within ``seconds``.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._free.acquire()
        except TimeoutError:
            raise TooBusy("Too many pages are read now; try again in some seconds.") from None
        try:
            yield
        finally:
            self._free.release()
