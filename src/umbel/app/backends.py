"""From settings to the backend that they name."""

from __future__ import annotations

from urllib.parse import urlsplit

from umbel.app.link_backend import LINKS, LinkBackend
from umbel.backends import Backend
from umbel.backends.choosing import STORES, open_store, open_transport
from umbel.backends.pairs import PairBackend
from umbel.clock import Clock
from umbel.configuration import DEFAULT_URL, Settings
from umbel.errors import ConfigurationError
from umbel.telemetry import Telemetry


def open_backend(settings: Settings, clock: Clock, telemetry: Telemetry) -> Backend:
    """Return the backend of the settings' brokers and store. Raises ConfigurationError."""
    broker, store, namespace = settings.broker, settings.store, settings.namespace
    scheme = urlsplit(broker).scheme
    if scheme in LINKS:
        for name, given in (("store", store), ("brokers", settings.brokers)):
            if given:
                raise ConfigurationError(
                    f"{name}={settings.public()[name]!r}: {scheme}:// has its own already;"
                    " leave it out"
                )
        return LinkBackend(broker)
    url = store or (broker if scheme in STORES else DEFAULT_URL)
    kept = open_store(url, namespace=namespace, deadline=settings.deadline, clock=clock)
    carried = {broker: "broker"} | {url: f"brokers[{q!r}]" for q, url in settings.brokers.items()}
    carried.pop(url, None)
    if not carried:
        return kept
    return PairBackend(
        {url: open_transport(name, url, namespace=namespace) for url, name in carried.items()},
        kept,
        default=broker,
        by_queue=settings.brokers,
        namespace=namespace,
        clock=clock,
        telemetry=telemetry,
    )
