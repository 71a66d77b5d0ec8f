"""Opens the transport of a RabbitMQ URL."""

from __future__ import annotations

from umbel.backends.rabbitmq.address import RabbitAddress
from umbel.backends.rabbitmq.transport import RabbitTransport
from umbel.backends.transport import OnLaneMissing, OpenTransport, Transport


def transport(url: str, namespace: str) -> OpenTransport:
    """Return a function that opens a transport to this server. Raise ConfigurationError."""
    address = RabbitAddress(url)

    def open_transport(on_lane_missing: OnLaneMissing) -> Transport:
        return RabbitTransport(address, namespace=namespace, on_lane_missing=on_lane_missing)

    return open_transport
