"""Owns how Umbel's own processes call each other without a broker: ports over AMQP 1.0.

Called by: the composition root. Workers and publishers are clients; the router, the publisher
daemon and a worker's inbox are servers. Never: knows what a port is for.
"""

from umbel.links.client import LinkClient, Stub
from umbel.links.server import LinkServer, MessageHandler, PeerNodes, ServedPort

__all__ = ["LinkClient", "LinkServer", "MessageHandler", "PeerNodes", "ServedPort", "Stub"]
