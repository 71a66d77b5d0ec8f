"""Messages that another program sent: what they are called, and what stands for a bad one."""

from __future__ import annotations

import re
from uuid import NAMESPACE_OID, uuid5

from msgspec.structs import replace

from umbel.backends.transport import Arrival
from umbel.errors import BadMessage
from umbel.messages import Attempt, Body, Delivery, Envelope, Rejected, Settlement
from umbel.messages.wire import asking, read_message

UNREADABLE = "(unreadable)"
"""The task of a record that stands for a message nobody could read."""
TAKEN = "uniquekey: a live job holds it"
"""Why a message is buried whose sender would have been refused, had it called us."""
_PLAIN_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def id_of(arrival: Arrival, namespace: str) -> str:
    """A message's id; for one that has none, an id that the same bytes would have again."""
    job = arrival.id if arrival.id is not None else arrival.read().attributes.get("id")
    if isinstance(job, str) and _PLAIN_ID.fullmatch(job):
        return job
    try:
        return read_message(*arrival.read(), arrival.data).id
    except BadMessage:
        return str(uuid5(NAMESPACE_OID, f"{namespace}:{arrival.data.hex()}"))


def read(arrival: Arrival, namespace: str, job: str) -> Envelope:
    """What it says; what it is called, and where it came in, count more than what it says of that.

    Raises:
        BadMessage: no CloudEvent, or a field has the wrong form; it names the field.
    """
    found = read_message(*arrival.read(), arrival.data)
    return replace(found, id=job, namespace=namespace, queue=arrival.lane.queue)


def stand_in(arrival: Arrival, namespace: str, job: str) -> Envelope:
    """What is kept, to be buried, of a message that cannot be read. Whoever asked is to hear."""
    attributes, content_type = arrival.read()
    return Envelope(
        id=job,
        subject=UNREADABLE,
        body=Body(content_type or "application/octet-stream", arrival.data),
        namespace=namespace,
        queue=arrival.lane.queue,
        kind=arrival.lane.kind,
        headers=asking(attributes, arrival.data),
    )


def burial(delivery: Delivery, problem: str, now: float) -> Settlement:
    """How a message ends that can never run."""
    story = Attempt(delivery.attempt, "", now, now, "rejected", reason=problem)
    return Settlement(lease=delivery.lease, outcome=Rejected(problem), attempt=story)
