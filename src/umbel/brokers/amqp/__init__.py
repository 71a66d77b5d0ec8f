"""Messages by way of any broker that speaks AMQP 1.0: a queue for each lane, reached by its name.

::

    AmqpTransport ─┬─ Sender ────── a connection that only sends; an alarm may block it
                   ├─ Receiver ──── a connection that never sends, so no alarm blocks it
                   │    └─ Intake   one lane's link, and what it holds
                   └─ Lanes ─────── names them, makes them where that can be done, and tells
"""

from umbel.brokers.amqp.names import queue_name
from umbel.brokers.amqp.transport import AmqpTransport

__all__ = ["AmqpTransport", "queue_name"]
