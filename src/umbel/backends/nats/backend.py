"""From a URL to the transport of its server."""

from __future__ import annotations

from umbel.backends.nats.address import Home
from umbel.backends.nats.transport import NatsTransport
from umbel.backends.transport import Lost, OpenTransport, Transport


def transport(url: str, namespace: str) -> OpenTransport:
    """Return a function that opens a transport to this server. Raises ConfigurationError."""
    home = Home(url)

    def opened(lost: Lost) -> Transport:
        return NatsTransport(home, namespace=namespace, lost=lost)

    return opened
