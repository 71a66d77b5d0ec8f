"""Messages by way of RabbitMQ: a durable queue for each lane, reached by its name alone.

::

    RabbitTransport ─┬─ Sender ───── a connection that only publishes; an alarm may block it
                     ├─ DirectSender  the same in the threads of callers, without an event loop
                     ├─ Receiver ─── a connection that never publishes, so no alarm blocks it
                     │    └─ Intake  one lane's channel, consumer, and what it holds
                     └─ Queues ───── names them, makes them when they are missing, and tells
"""

from umbel.brokers.rabbitmq.transport import RabbitTransport

__all__ = ["RabbitTransport"]
