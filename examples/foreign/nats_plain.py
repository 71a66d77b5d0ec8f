"""Publish a task and receive its result with only nats-py."""

import asyncio
import json
import os
import uuid
from urllib.parse import unquote

import nats

SUBJECT = os.environ.get("SUBJECT", "umbel.default")


async def main() -> None:
    client = await nats.connect(os.environ.get("NATS_URL", "nats://localhost"))
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    event = {
        "specversion": "1.0",
        "id": str(uuid.uuid4()),
        "type": "umbel.command",
        "source": "/shop/checkout",
        "subject": "hello.add",
        "replyto": inbox,
        "data": {"args": [20, 22]},
    }
    await client.jetstream().publish(SUBJECT, json.dumps(event).encode())
    answer = await answers.next_msg(timeout=30)
    document = {n[3:]: unquote(v) for n, v in answer.headers.items() if n.startswith("ce-")}
    print(json.dumps({**document, "data": json.loads(answer.data)}))
    await client.close()


asyncio.run(main())
