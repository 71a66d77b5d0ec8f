"""Write a command and read its document with the CloudEvents SDK."""

import os
import uuid
from datetime import UTC, datetime

import redis
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

NAMESPACE = os.environ.get("NAMESPACE", "umbel")

server = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost"))
job = str(uuid.uuid4())
attributes = {
    "specversion": "1.0",
    "id": job,
    "type": "umbel.command",
    "source": "/shop/checkout",
    "subject": "hello.add",
    "time": datetime.now(UTC),
    "datacontenttype": "application/json",
    "replyto": f"reply:{job}",
}
event = CloudEvent(attributes=attributes, data={"args": [20, 22]})
server.rpush(f"umbel:{{{NAMESPACE}}}:inbox", JSONFormat().write(event))

found = server.blpop([f"reply:{job}"], timeout=30)
if found is None:
    raise SystemExit("no answer: is a worker running?")
document = JSONFormat().read(CloudEvent, found[1])
print(document.get_type(), document.get_id() == job)
print(document.get_extension("state"), document.get_data())
