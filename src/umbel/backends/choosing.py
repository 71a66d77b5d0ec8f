"""Opens the backend of a URL. The code of a server is imported only when a URL needs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast
from urllib.parse import urlsplit

from umbel.backends.backend import StoreBackend
from umbel.backends.transport import OpenTransport
from umbel.clock import Clock
from umbel.errors import ConfigurationError
from umbel.urls import mask_url, url_examples

_REDIS = dict.fromkeys(
    (
        *("redis", "rediss", "redis+unix", "redis+sentinel", "rediss+sentinel"),
        *("valkey", "valkeys", "valkey+unix", "valkey+sentinel", "valkeys+sentinel"),
    ),
    "redis",
)
STORES = {"sqlite": "sqlite", "postgresql": "postgres", "postgres": "postgres", **_REDIS}
"""The package of each URL scheme that can be both broker and store."""
TRANSPORTS = {
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "amqp1": "amqp",
    "amqp1s": "amqp",
    "nats": "nats",
    "tls": "nats",
    **_REDIS,
}
"""The package of each URL scheme that can carry messages for a store elsewhere."""


def open_store(url: str, *, namespace: str, deadline: float, clock: Clock) -> StoreBackend:
    """Return the backend of a store's URL. Raises ConfigurationError."""
    scheme = urlsplit(url).scheme
    store = _server(scheme, STORES[scheme]).store
    return cast(StoreBackend, store(url, namespace=namespace, deadline=deadline, clock=clock))


def open_transport(setting: str, url: str, *, namespace: str) -> OpenTransport:
    """Return a function that opens a transport to a broker's URL. Raises ConfigurationError."""
    scheme = urlsplit(url).scheme
    if scheme not in TRANSPORTS:
        raise ConfigurationError(
            f"{setting}={mask_url(url)!r}: {scheme} is both broker and store; give the same URL"
            f" as the store, or one of\n{url_examples(TRANSPORTS)}"
        )
    return cast(OpenTransport, _server(scheme, TRANSPORTS[scheme]).transport(url, namespace))


def _server(scheme: str, server: str) -> Any:
    try:
        return import_module(f"umbel.backends.{server}.backend")
    except ImportError as error:
        raise ConfigurationError(
            f"{scheme}:// needs its driver: pip install 'umbel[{server}]' ({error})"
        ) from None
