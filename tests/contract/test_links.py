"""Every suite over a link: calls from another process keep the promises of the ports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("proton", reason="not run: links; Qpid Proton is not installed")

from sqlite_adapters import open_sqlite

from umbel.backends import (
    Broker,
    Control,
    Coordination,
    Demand,
    Gates,
    Joins,
    Records,
    Registry,
    Steps,
)
from umbel.backends.amqp.address import AmqpAddress
from umbel.backends.sqlite.database import SqliteFile
from umbel.links import LinkClient, LinkServer, MessageHandler, ServedPort, Stub
from umbel.messages import Delivery, Lease, Settlement
from umbel.router import Dispatcher
from umbel.telemetry import Telemetry
from umbel.testing import Adapters, FakeClock, OpenAdapters
from umbel.testing.brokers import BrokerSuite, GateTopics, RouteSuite
from umbel.testing.brokers.machine import MachineSuite
from umbel.testing.stores import CoordinationSuite, JoinSuite, StoreSuite
from umbel.testing.stores.coordination_machine import CoordinationMachineSuite
from umbel.testing.stores.join_machine import JoinMachineSuite


class Everything:
    """Serves all ports of a backend."""

    def __init__(self, kept: Adapters) -> None:
        self._ports: dict[str, ServedPort] = {
            "broker": ServedPort(Broker, kept.broker),
            "records": ServedPort(Records, kept.records),
            "registry": ServedPort(Registry, kept.registry),
            "control": ServedPort(Control, kept.control),
            "gates": ServedPort(Gates, kept.gates),
            "steps": ServedPort(Steps, kept.steps),
            "joins": ServedPort(Joins, kept.joins),
            "coordination": ServedPort(Coordination, kept.coordination),
        }

    def find(self, address: str) -> ServedPort | MessageHandler | None:
        return self._ports.get(address)

    async def close(self) -> None:
        pass


class Dispatched:
    """A broker whose fetches and settlements go through a dispatcher, as in a router process."""

    def __init__(self, broker: Any, clock: FakeClock) -> None:
        self._broker = broker
        self._dispatcher = Dispatcher(broker, clock)
        self._line = self._dispatcher.waiting_workers(())
        self._owner = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def fetch(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        self._line, self._owner = self._dispatcher.waiting_workers(queues), owner
        return await self._line.fetch(owner, demand, wait)

    def stop_waiting(self) -> None:
        self._line.stop_waiting(self._owner)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        return await self._dispatcher.settle(settlements)

    async def close(self) -> None:
        await self._dispatcher.close()


@asynccontextmanager
async def linked(books: Any, folder: Path, *, dispatched: bool) -> AsyncIterator[Adapters]:
    """Open a backend over a link. Each further one has its own link."""
    async with books as kept:
        if dispatched:
            kept = replace(kept, broker=Dispatched(kept.broker, kept.clock))
        address = AmqpAddress(f"umbel+unix://{folder}/{len(list(folder.iterdir()))}.sock")
        server = LinkServer(address, lambda: Everything(kept), Telemetry())
        await server.start()
        link = LinkClient(address)

        def another(namespace: str | None = None) -> Any:
            return linked(kept.another(namespace), folder, dispatched=dispatched)

        def no_transaction(*_: object) -> None:
            raise AssertionError("a link has no transactions")

        try:
            can = replace_capabilities(kept)
            yield replace(
                kept,
                broker=Stub(
                    Broker, "broker", link, capabilities=can, publish_within=no_transaction
                ),
                records=Stub(Records, "records", link),
                registry=Stub(Registry, "registry", link),
                control=Stub(Control, "control", link),
                gates=Stub(Gates, "gates", link),
                steps=Stub(Steps, "steps", link),
                joins=Stub(Joins, "joins", link, add_within=no_transaction),
                coordination=Stub(Coordination, "coordination", link),
                another=another,
                transaction=None,
                sync_transaction=None,
                step_transactions=None,
            )
        finally:
            await link.close()
            await server.close()


def replace_capabilities(kept: Adapters) -> Any:
    from msgspec.structs import replace as changed

    return changed(kept.broker.capabilities, transactional=False, blocking=False)


class OverALink(
    BrokerSuite,
    GateTopics,
    RouteSuite,
    StoreSuite,
    CoordinationSuite,
    JoinSuite,
    MachineSuite,
    CoordinationMachineSuite,
    JoinMachineSuite,
):
    dispatched = False
    join_examples = 12
    coordination_examples = 40

    @pytest.fixture
    def backend(self, tmp_path_factory: pytest.TempPathFactory) -> OpenAdapters:
        def open_one() -> object:
            folder = tmp_path_factory.mktemp("link")
            sockets = folder / "s"
            sockets.mkdir()
            books = open_sqlite(
                lambda: SqliteFile(str(folder / "umbel.db"), synchronous="off"), FakeClock()
            )
            return linked(books, sockets, dispatched=self.dispatched)

        return open_one  # type: ignore[return-value]


class TestLink(OverALink):
    """A link to adapters on a SQLite file."""


class TestRouter(OverALink):
    """The suite through a dispatcher, which many workers share."""

    dispatched = True
