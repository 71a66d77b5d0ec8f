"""RabbitMQ: a durable queue for each lane. It carries messages for a store elsewhere.

pika implements the protocol. Its callbacks run inside the event loop, without threads.

::

    RabbitTransport ─┬─ Sender ───── a connection that only publishes; an alarm may block it
                     ├─ DirectSender  the same in the threads of callers, without an event loop
                     ├─ Receiver ─── a connection that never publishes, so no alarm blocks it
                     │    └─ Intake  the channel and consumer of one lane
                     └─ Queues ───── names the queues and declares missing ones
"""
