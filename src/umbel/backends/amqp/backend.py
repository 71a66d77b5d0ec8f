"""Opens the transport of a URL."""

from __future__ import annotations

from umbel.backends.amqp.address import AmqpAddress
from umbel.backends.amqp.transport import AmqpTransport
from umbel.backends.transport import OnLaneMissing, OpenTransport, Transport


def transport(url: str, namespace: str) -> OpenTransport:
    """Return a function that opens a transport to this server. Raises ConfigurationError."""
    address = AmqpAddress(url)

    def open_transport(on_lane_missing: OnLaneMissing) -> Transport:
        return AmqpTransport(address, namespace=namespace, on_lane_missing=on_lane_missing)

    return open_transport
