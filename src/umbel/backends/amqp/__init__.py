"""AMQP 1.0: any broker that speaks it carries messages for a store elsewhere; links use it, too.

Qpid Proton implements the protocol without sockets; the event loop moves its bytes.

::

    AmqpTransport ─┬─ Sender ────── a connection that only sends; an alarm may block it
                   ├─ Receiver ──── a connection that never sends, so no alarm blocks it
                   │    └─ Intake   the link of one lane
                   └─ Lanes ─────── names the queues and declares them where the broker allows it
"""
