"""AMQP 1.0: any broker that supports it carries messages for a job store elsewhere.

Links between Umbel's own processes use the same connections. Qpid Proton implements the protocol
without sockets; the event loop moves its bytes.

::

    AmqpTransport ─┬─ Sender ───────── a connection that only sends; a memory or disk alarm of the
                   │                   broker may block it
                   ├─ Receiver ─────── a connection that never sends, so that no alarm blocks it
                   │    └─ LaneReceiver   the link of one lane
                   └─ LaneQueues ───── names the queues and creates them where the broker allows it
"""
