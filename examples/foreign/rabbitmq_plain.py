"""Publish a task and receive its result with only pika."""

import json
import os
import uuid

import pika

QUEUE = os.environ.get("QUEUE", "umbel.default.any")
DIRECT = "amq.rabbitmq.reply-to"

url = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost/%2F")
job = str(uuid.uuid4())
event = {
    "specversion": "1.0",
    "id": job,
    "type": "umbel.command",
    "source": "/shop/checkout",
    "subject": "hello.add",
    "data": {"args": [20, 22]},
}

with pika.BlockingConnection(pika.URLParameters(url)) as connection:
    channel = connection.channel()
    channel.confirm_delivery()
    answers = []
    channel.basic_consume(DIRECT, lambda *answer: answers.append(answer), auto_ack=True)
    properties = pika.BasicProperties(
        content_type="application/cloudevents+json",
        delivery_mode=2,  # survives a restart of the server
        reply_to=DIRECT,
        correlation_id=job,
    )
    channel.basic_publish("", QUEUE, json.dumps(event), properties, mandatory=True)
    while not answers:
        connection.process_data_events(time_limit=30)

_, _, answer, data = answers[0]
prefix = "cloudEvents_"
document = {n.removeprefix(prefix): v for n, v in answer.headers.items() if n.startswith(prefix)}
print(json.dumps({**document, "data": json.loads(data)}))
