"""Which backend serves a URL. The code of a server is imported only when a URL needs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast
from urllib.parse import urlsplit

from umbel.backends.backend import StoreBackend
from umbel.backends.transport import OpenTransport
from umbel.clock import Clock
from umbel.errors import ConfigurationError
from umbel.urls import masked_url

_REDIS = dict.fromkeys(
    (
        *("redis", "rediss", "redis+unix", "redis+sentinel", "rediss+sentinel"),
        *("valkey", "valkeys", "valkey+unix", "valkey+sentinel", "valkeys+sentinel"),
    ),
    "redis",
)
STORES = {"sqlite": "sqlite", "postgresql": "postgres", "postgres": "postgres", **_REDIS}
"""The server of each URL scheme that can be broker and store in one."""
TRANSPORTS = {
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "amqp1": "amqp",
    "amqp1s": "amqp",
    "nats": "nats",
    "tls": "nats",
    **_REDIS,
}
"""The server of each URL scheme that can carry messages for a store elsewhere."""


def open_store(url: str, *, namespace: str, deadline: float, clock: Clock) -> StoreBackend:
    """Return the backend of a store's URL. Raises ConfigurationError."""
    scheme = urlsplit(url).scheme
    if scheme not in STORES:
        raise ConfigurationError(
            f"store={masked_url(url)!r}: {scheme} keeps no records; give one of {', '.join(STORES)}"
        )
    store = _server(scheme, STORES[scheme]).store
    return cast(StoreBackend, store(url, namespace=namespace, deadline=deadline, clock=clock))


def open_transport(setting: str, url: str, *, namespace: str) -> OpenTransport:
    """Return a function that opens a transport to a broker's URL. Raises ConfigurationError."""
    scheme = urlsplit(url).scheme
    if scheme not in TRANSPORTS:
        raise ConfigurationError(
            f"{setting}={masked_url(url)!r}: {scheme} is broker and store in one; give it as the"
            f" store, too, or a broker that can do without: {', '.join(TRANSPORTS)}"
        )
    return cast(OpenTransport, _server(scheme, TRANSPORTS[scheme]).transport(url, namespace))


def _server(scheme: str, server: str) -> Any:
    try:
        return import_module(f"umbel.backends.{server}.backend")
    except ImportError as error:
        raise ConfigurationError(
            f"{scheme}:// needs its driver: pip install 'umbel[{server}]' ({error})"
        ) from None
