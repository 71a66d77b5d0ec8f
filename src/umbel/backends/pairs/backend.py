"""A broker that only carries messages, with a store elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from umbel.backends.backend import Roles, StoreBackend
from umbel.backends.broker import JobStore
from umbel.backends.pairs.broker import PairBroker
from umbel.backends.pairs.multi_transport import MultiTransport
from umbel.backends.pairs.partial_broker import PartialPairBroker
from umbel.backends.steps import Transactions
from umbel.backends.transport import Lost, OpenTransport, Transport
from umbel.clock import Clock
from umbel.telemetry import Telemetry


class PairBackend:
    """Two addresses, or more, that work as one.

    ``carries`` opens the transport to each broker's URL. ``default`` is the broker of the
    queues that ``by_queue`` does not name. Queues whose broker has no transport stay in the store.
    """

    def __init__(
        self,
        carries: Mapping[str, OpenTransport],
        store: StoreBackend,
        *,
        default: str,
        by_queue: Mapping[str, str],
        namespace: str,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._carries = carries
        self._store = store
        self._default = default
        self._by_queue = by_queue
        self._namespace = namespace
        self._clock = clock
        self._telemetry = telemetry

    def open(self, *, inline: bool = False) -> Roles:
        kept = self._store.open(inline=inline, ledger=True)
        used = {self._default, *self._by_queue.values()}
        kind = PairBroker if used <= self._carries.keys() else PartialPairBroker
        broker = kind(
            self._carry,
            cast(JobStore, kept.broker),
            namespace=self._namespace,
            clock=self._clock,
            find=kept.records.find,
            telemetry=self._telemetry,
        )
        return msgspec.structs.replace(kept, broker=broker)

    def _carry(self, lost: Lost) -> Transport:
        opened = {url: carry(lost) for url, carry in self._carries.items()}
        named, rest = self._by_queue, opened.get(self._default)
        if not named and rest is not None:
            return rest
        return MultiTransport({queue: opened.get(url) for queue, url in named.items()}, rest)

    async def migrate(self) -> list[int]:
        return await self._store.migrate()

    async def version(self) -> tuple[int, int]:
        return await self._store.version()

    def transactions(self) -> Transactions:
        return self._store.transactions()

    async def unwrap(self, connection: Any) -> Any:
        return await self._store.unwrap(connection)
