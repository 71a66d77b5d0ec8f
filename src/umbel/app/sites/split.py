"""A broker that only carries, and a store elsewhere that keeps the books."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from umbel.app.sites.redis import REDIS
from umbel.app.sites.site import StoreSite
from umbel.brokers import (
    Carry,
    Ledger,
    Lost,
    MappedTransport,
    PartlySplitBroker,
    SplitBroker,
    Transport,
)
from umbel.clock import Clock
from umbel.configuration import Settings
from umbel.errors import ConfigurationError
from umbel.router import Backend
from umbel.stores import Transactions
from umbel.telemetry import Telemetry


class SplitSite:
    """Two addresses, or more, that work as one.

    ``carries`` opens the transport to each broker's address. Queues whose broker is not among
    them stay with the store.
    """

    def __init__(
        self,
        carries: Mapping[str, Carry],
        store: StoreSite,
        settings: Settings,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._carries = carries
        self._store = store
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry

    def open(self, *, inline: bool = False) -> Backend:
        kept = self._store.open(inline=inline, ledger=True)
        used = {self._settings.broker, *self._settings.brokers.values()}
        kind = SplitBroker if used <= self._carries.keys() else PartlySplitBroker
        broker = kind(
            self._carry,
            cast(Ledger, kept.broker),
            namespace=self._settings.namespace,
            clock=self._clock,
            find=kept.records.find,
            telemetry=self._telemetry,
        )
        return msgspec.structs.replace(kept, broker=broker)

    def _carry(self, lost: Lost) -> Transport:
        opened = {url: carry(lost) for url, carry in self._carries.items()}
        named, rest = self._settings.brokers, opened.get(self._settings.broker)
        if not named and rest is not None:
            return rest
        return MappedTransport({queue: opened.get(url) for queue, url in named.items()}, rest)

    async def migrate(self) -> list[int]:
        return await self._store.migrate()

    async def version(self) -> tuple[int, int]:
        return await self._store.version()

    def transactions(self) -> Transactions:
        return self._store.transactions()

    async def unwrap(self, connection: Any) -> Any:
        return await self._store.unwrap(connection)


def carry(scheme: str, url: str, namespace: str) -> Carry:
    """How to open a transport to this address. Raises ConfigurationError."""
    try:
        return _CARRIERS[scheme](url, namespace)
    except ImportError as error:
        raise ConfigurationError(
            f"{scheme}:// needs its driver: pip install 'umbel[{_EXTRAS[scheme]}]' ({error})"
        ) from None


def _rabbitmq(url: str, namespace: str) -> Carry:
    from umbel.brokers.rabbitmq import RabbitTransport
    from umbel.drivers.rabbitmq import Home

    home = Home(url)

    def opened(lost: Lost) -> Transport:
        return RabbitTransport(home, namespace=namespace, lost=lost)

    return opened


def _nats(url: str, namespace: str) -> Carry:
    from umbel.brokers.nats import NatsTransport
    from umbel.drivers.nats import Home

    home = Home(url)

    def opened(lost: Lost) -> Transport:
        return NatsTransport(home, namespace=namespace, lost=lost)

    return opened


def _amqp1(url: str, namespace: str) -> Carry:
    from umbel.brokers.amqp import AmqpTransport
    from umbel.drivers.amqp import Home

    home = Home(url)

    def opened(lost: Lost) -> Transport:
        return AmqpTransport(home, namespace=namespace, lost=lost)

    return opened


def _redis(url: str, namespace: str) -> Carry:
    from umbel.brokers.redis import RedisTransport
    from umbel.drivers.redis import Home

    home = Home(url)

    def opened(lost: Lost) -> Transport:
        return RedisTransport(home, namespace=namespace, lost=lost)

    return opened


_CARRIERS: dict[str, Callable[[str, str], Carry]] = {
    "amqp": _rabbitmq,
    "amqps": _rabbitmq,
    "amqp1": _amqp1,
    "amqp1s": _amqp1,
    "nats": _nats,
    "tls": _nats,
    **dict.fromkeys(REDIS, _redis),
}
_EXTRAS = {
    **dict.fromkeys(("amqp", "amqps"), "rabbitmq"),
    **dict.fromkeys(("amqp1", "amqp1s"), "amqp"),
    **dict.fromkeys(("nats", "tls"), "nats"),
    **dict.fromkeys(REDIS, "redis"),
}
CARRIERS = tuple(_CARRIERS)
