"""Opens the transport of a NATS URL."""

from __future__ import annotations

from umbel.backends.nats.address import NatsAddress
from umbel.backends.nats.transport import NatsTransport
from umbel.backends.transport import OnLaneMissing, OpenTransport, Transport


def transport(url: str, namespace: str) -> OpenTransport:
    """Return a function that opens a transport to these servers. Raise ConfigurationError."""
    address = NatsAddress(url)

    def open_transport(on_lane_missing: OnLaneMissing) -> Transport:
        return NatsTransport(address, namespace=namespace, on_lane_missing=on_lane_missing)

    return open_transport
