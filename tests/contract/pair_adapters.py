"""Adapters whose broker is a pair: a transport and a job store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any, cast

from umbel.backends import JobStore, OnLaneMissing, OpenTransport, Transport
from umbel.backends.pairs import PairBroker
from umbel.testing import Adapters

OpenTransportOf = Callable[[str], OpenTransport]
"""Opens transports of a namespace."""


@dataclass(frozen=True, kw_only=True)
class PairAdapters(Adapters):
    """Adapters, and the two parts of their broker."""

    transport: Transport
    job_store: JobStore


@asynccontextmanager
async def open_pair(
    store: AbstractAsyncContextManager[Adapters],
    transport_of: OpenTransportOf,
    kind: type[PairBroker] = PairBroker,
) -> AsyncIterator[PairAdapters]:
    """Open the adapters of a store, with a broker that sends messages over a transport."""
    async with store as adapters:
        opened: list[Transport] = []

        def open_transport(on_lane_missing: OnLaneMissing) -> Transport:
            opened.append(transport_of(adapters.namespace)(on_lane_missing))
            return opened[-1]

        job_store = cast(JobStore, adapters.broker)
        broker = kind(
            open_transport,
            job_store,
            namespace=adapters.namespace,
            clock=adapters.clock,
            find=adapters.records.find,
        )

        def another(namespace: str | None = None) -> Any:
            return open_pair(adapters.another(namespace), transport_of, kind)

        same = {each.name: getattr(adapters, each.name) for each in fields(Adapters)}
        changed = {"broker": broker, "another": another}
        try:
            yield PairAdapters(**same | changed, transport=opened[0], job_store=job_store)
        finally:
            await broker.close()
