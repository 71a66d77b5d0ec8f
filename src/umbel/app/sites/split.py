"""A broker that only carries, and a store elsewhere that keeps the books."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from umbel.app.sites.site import StoreSite
from umbel.brokers import Carry, Ledger, Lost, SplitBroker, Transport
from umbel.clock import Clock
from umbel.configuration import Settings
from umbel.errors import ConfigurationError
from umbel.router import Backend


class SplitSite:
    """Two addresses that work as one."""

    def __init__(self, carry: Carry, store: StoreSite, settings: Settings, clock: Clock) -> None:
        self._carry = carry
        self._store = store
        self._settings = settings
        self._clock = clock

    def open(self, *, inline: bool = False) -> Backend:
        kept = self._store.open(inline=inline, ledger=True)
        broker = SplitBroker(
            self._carry,
            cast(Ledger, kept.broker),
            namespace=self._settings.namespace,
            clock=self._clock,
        )
        return Backend(broker, kept.records, kept.registry, kept.control)

    async def migrate(self) -> list[int]:
        return await self._store.migrate()

    async def version(self) -> tuple[int, int]:
        return await self._store.version()

    async def unwrap(self, connection: Any) -> Any:
        return await self._store.unwrap(connection)


def carry(scheme: str, url: str, namespace: str) -> Carry:
    """How to open a transport to this address. Raises ConfigurationError."""
    try:
        return _CARRIERS[scheme](url, namespace)
    except ImportError as error:
        extra = "nats" if scheme in ("nats", "tls") else "rabbitmq"
        raise ConfigurationError(
            f"{scheme}:// needs its driver: pip install 'umbel[{extra}]' ({error})"
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


_CARRIERS: dict[str, Callable[[str, str], Carry]] = {
    "amqp": _rabbitmq,
    "amqps": _rabbitmq,
    "nats": _nats,
    "tls": _nats,
}
CARRIERS = tuple(_CARRIERS)
