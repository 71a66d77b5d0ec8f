"""RabbitMQ over AMQP 0.9.1: connections that say when they are lost, channels that are awaited.

pika does the talking. It is called back inside the running event loop, asyncio's own or uvloop:
no thread, no task for a message. Everything that knows pika is in this folder.
"""

from umbel.drivers.rabbitmq.channels import Channel
from umbel.drivers.rabbitmq.connections import Connection, connect
from umbel.drivers.rabbitmq.deliveries import Delivery
from umbel.drivers.rabbitmq.direct import Direct
from umbel.drivers.rabbitmq.frames import Message
from umbel.drivers.rabbitmq.home import Home
from umbel.drivers.rabbitmq.publishing import Publishing

__all__ = [
    "Channel",
    "Connection",
    "Delivery",
    "Direct",
    "Home",
    "Message",
    "Publishing",
    "connect",
]
