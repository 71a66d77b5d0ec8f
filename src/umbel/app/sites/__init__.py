"""From URLs to the adapters behind them. Drivers are imported here, on first use."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from umbel.app.sites.link import LINKS, LinkSite
from umbel.app.sites.postgres import PostgresSite
from umbel.app.sites.redis import REDIS, RedisSite
from umbel.app.sites.site import Site, StoreSite
from umbel.app.sites.split import CARRIERS, SplitSite, carry
from umbel.app.sites.sqlite import SqliteSite
from umbel.brokers import Carry
from umbel.clock import Clock
from umbel.configuration import DEFAULT_URL, Settings
from umbel.errors import ConfigurationError
from umbel.telemetry import Telemetry
from umbel.urls import masked_url

__all__ = ["LinkSite", "Site", "site"]

_STORES: dict[str, Callable[[str, Settings, Clock], StoreSite]] = {
    "sqlite": SqliteSite,
    "postgresql": PostgresSite,
    "postgres": PostgresSite,
    **dict.fromkeys(REDIS, RedisSite),
}


def site(settings: Settings, clock: Clock, telemetry: Telemetry) -> Site:
    """The site of the settings' brokers and store."""
    broker, store = settings.broker, settings.store
    scheme = urlsplit(broker).scheme
    if scheme in LINKS:
        for name, given in (("store", store), ("brokers", settings.brokers)):
            if given:
                raise ConfigurationError(
                    f"{name}={settings.public()[name]!r}: {scheme}:// has its own already;"
                    " leave it out"
                )
        return LinkSite(broker, settings, clock)
    books = store or (broker if scheme in _STORES else DEFAULT_URL)
    kept = _store(books, settings, clock)
    carried = {broker: "broker"} | {url: f"brokers[{q!r}]" for q, url in settings.brokers.items()}
    carried.pop(books, None)
    if not carried:
        return kept
    carries = {url: _carry(name, url, settings) for url, name in carried.items()}
    return SplitSite(carries, kept, settings, clock, telemetry)


def _carry(name: str, url: str, settings: Settings) -> Carry:
    """How to open a transport to what carries for another store."""
    scheme = urlsplit(url).scheme
    if scheme not in CARRIERS:
        raise ConfigurationError(
            f"{name}={masked_url(url)!r}: {scheme} is broker and store in one; give it as the"
            f" store, too, or a broker that can do without: {', '.join(CARRIERS)}"
        )
    return carry(scheme, url, settings.namespace)


def _store(url: str, settings: Settings, clock: Clock) -> StoreSite:
    scheme = urlsplit(url).scheme
    if scheme not in _STORES:
        raise ConfigurationError(
            f"store={masked_url(url)!r}: {scheme} keeps no records;"
            f" give one of {', '.join(_STORES)}"
        )
    return _STORES[scheme](url, settings, clock)
