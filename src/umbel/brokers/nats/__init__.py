"""The NATS transport: a JetStream stream for each lane. Another adapter keeps the books."""

from umbel.brokers.nats.names import stream_of
from umbel.brokers.nats.transport import NatsTransport

__all__ = ["NatsTransport", "stream_of"]
