"""RabbitMQ: a durable queue for each lane. It carries messages for a job store elsewhere.

pika implements the protocol. Its callbacks run inside the event loop, without threads.

::

    RabbitTransport ─┬─ Sender ──────────── a connection that only publishes; an alarm may block it
                     │    └─ ConfirmChannel   a channel whose messages the server confirms
                     ├─ Receiver ────────── a connection that never publishes, so no alarm blocks it
                     │    └─ LaneConsumer     the channel and consumer of one lane
                     └─ Queues ──────────── names the queues and declares missing ones

A blocking publish runs on the event loop of the client's thread.
"""
