"""The backend of a pair: brokers that only carry messages, and a store elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from umbel.backends.backend import Roles, StoreBackend
from umbel.backends.broker import JobStore
from umbel.backends.erasing import NamespaceEraser
from umbel.backends.pairs.broker import PairBroker
from umbel.backends.pairs.erasing import PairEraser
from umbel.backends.pairs.multi_transport import MultiTransport
from umbel.backends.pairs.partial_broker import PartialPairBroker
from umbel.backends.steps import Transactions
from umbel.backends.transport import OnLaneMissing, OpenTransport, Transport
from umbel.clock import Clock
from umbel.telemetry import Telemetry


class PairBackend:
    """Two or more addresses that work as one backend.

    ``transports`` opens the transport of each broker's URL. ``default`` is the broker of the queues
    that ``by_queue`` does not name. Queues whose broker has no transport stay in the store.
    """

    def __init__(
        self,
        transports: Mapping[str, OpenTransport],
        store: StoreBackend,
        *,
        default: str,
        by_queue: Mapping[str, str],
        namespace: str,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._transports = transports
        self._store = store
        self._default = default
        self._by_queue = by_queue
        self._namespace = namespace
        self._clock = clock
        self._telemetry = telemetry

    def open(self, *, is_loop_dedicated: bool = False) -> Roles:
        roles = self._store.open(is_loop_dedicated=is_loop_dedicated, as_job_store=True)
        used = {self._default, *self._by_queue.values()}
        kind = PairBroker if used <= self._transports.keys() else PartialPairBroker
        broker = kind(
            self._open_transport,
            cast(JobStore, roles.broker),
            namespace=self._namespace,
            clock=self._clock,
            find=roles.records.find,
            telemetry=self._telemetry,
        )
        return msgspec.structs.replace(roles, broker=broker)

    def _open_transport(self, on_lane_missing: OnLaneMissing) -> Transport:
        opened = {url: open_one(on_lane_missing) for url, open_one in self._transports.items()}
        named, rest = self._by_queue, opened.get(self._default)
        if not named and rest is not None:
            return rest
        return MultiTransport({queue: opened.get(url) for queue, url in named.items()}, rest)

    async def migrate(self) -> list[int]:
        return await self._store.migrate()

    async def version(self) -> tuple[int, int]:
        return await self._store.version()

    def eraser(self) -> NamespaceEraser:
        return PairEraser(self._store.eraser(), self._open_transport(lambda lane: None))

    def transactions(self) -> Transactions:
        return self._store.transactions()

    async def unwrap(self, connection: Any) -> Any:
        return await self._store.unwrap(connection)
