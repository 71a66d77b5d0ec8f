"""Publish a task and receive its result with only redis-py."""

import json
import os
import uuid

import redis

NAMESPACE = os.environ.get("NAMESPACE", "umbel")

server = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost"))
job = str(uuid.uuid4())
event = {
    "specversion": "1.0",
    "id": job,
    "type": "umbel.command",
    "source": "/shop/checkout",
    "subject": "hello.add",
    "replyto": f"reply:{job}",
    "data": {"args": [20, 22]},
}
server.rpush(f"umbel:{{{NAMESPACE}}}:inbox", json.dumps(event))

found = server.blpop([f"reply:{job}"], timeout=30)
if found is None:
    raise SystemExit("no answer: is a worker running?")
print(found[1].decode())
