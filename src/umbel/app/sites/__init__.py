"""From URLs to the adapters behind them. Drivers are imported here, on first use."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from umbel.app.sites.postgres import PostgresSite
from umbel.app.sites.redis import RedisSite
from umbel.app.sites.site import Site, StoreSite
from umbel.app.sites.split import CARRIERS, SplitSite, carry
from umbel.app.sites.sqlite import SqliteSite
from umbel.clock import Clock
from umbel.configuration import DEFAULT_URL, Settings
from umbel.errors import ConfigurationError

__all__ = ["Site", "site"]

_STORES: dict[str, Callable[[str, Settings, Clock], StoreSite]] = {
    "sqlite": SqliteSite,
    "postgresql": PostgresSite,
    "postgres": PostgresSite,
    "redis": RedisSite,
    "rediss": RedisSite,
    "valkey": RedisSite,
    "valkeys": RedisSite,
    "redis+unix": RedisSite,
    "valkey+unix": RedisSite,
}


def site(settings: Settings, clock: Clock) -> Site:
    """The site of the settings' broker and store."""
    broker, store = settings.broker, settings.store
    scheme = urlsplit(broker).scheme
    if scheme in CARRIERS:
        kept = _store(store or DEFAULT_URL, settings, clock)
        return SplitSite(carry(scheme, broker, settings.namespace), kept, settings, clock)
    if store and store != broker:
        raise ConfigurationError(
            f"store={store!r}: {scheme} is broker and store in one; leave store out, or give a"
            " broker that only carries messages, such as amqp:// or nats://"
        )
    return _store(broker, settings, clock)


def _store(url: str, settings: Settings, clock: Clock) -> StoreSite:
    scheme = urlsplit(url).scheme
    if scheme not in _STORES:
        raise ConfigurationError(
            f"store={url!r}: {scheme} keeps no records; give one of {', '.join(_STORES)}"
        )
    return _STORES[scheme](url, settings, clock)
