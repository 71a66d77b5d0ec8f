"""``app.routes``: which worker has which affinity key."""

from __future__ import annotations

from umbel.app.client import Client
from umbel.backends import Route, WorkerIndex


class AppRoutes:
    """Reads and releases routes. Async code uses the methods whose names begin with ``a``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def find(self, key: object) -> Route | None:
        """Return the live route of a key, or None."""
        return self._client.wait_for(self._client.routes.find(str(key)))

    async def afind(self, key: object) -> Route | None:
        """``find`` for async code."""
        return await self._client.await_on_loop(self._client.routes.find(str(key)))

    def worker_indexes(self) -> list[WorkerIndex]:
        """Return the workers by index, with the number of routes that each has."""
        return self._client.wait_for(self._client.routes.worker_indexes())

    async def aworker_indexes(self) -> list[WorkerIndex]:
        """``worker_indexes`` for async code."""
        return await self._client.await_on_loop(self._client.routes.worker_indexes())

    def release(self, key: object, why: str = "") -> Route | None:
        """End the route of a key, and return it; None if the key has none.

        The route ends immediately, or when the jobs that run by it are done. A running job may
        release its own route. Waiting jobs of the key get a new route, maybe to another worker.
        """
        return self._client.wait_for(self._client.routes.release(str(key), why))

    async def arelease(self, key: object, why: str = "") -> Route | None:
        """``release`` for async code."""
        return await self._client.await_on_loop(self._client.routes.release(str(key), why))
