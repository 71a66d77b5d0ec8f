"""Messages that another program sent: their ids, and what replaces a message that is invalid."""

from __future__ import annotations

import re
from uuid import NAMESPACE_OID, uuid5

from msgspec.structs import replace

from umbel.backends.transport import Arrival
from umbel.errors import BadMessage
from umbel.messages import Attempt, Body, Delivery, Envelope, Rejected, Settlement
from umbel.messages.wire import read_message, read_reply_headers, source_of

UNREADABLE = "(unreadable)"
"""The task in the record of a message that cannot be read."""
UNIQUE_KEY_HELD = "uniquekey: a live job holds it"
"""Why a message is buried that a publisher of Umbel would have refused."""
_PLAIN_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def id_of(arrival: Arrival, namespace: str) -> str:
    """Return the id of a message; without one, an id that is always the same for these bytes."""
    job = arrival.id if arrival.id is not None else arrival.read().attributes.get("id")
    if isinstance(job, str) and _PLAIN_ID.fullmatch(job):
        return job
    try:
        return read_message(*arrival.read(), arrival.data).id
    except BadMessage:
        return str(uuid5(NAMESPACE_OID, f"{namespace}:{arrival.data.hex()}"))


def is_foreign(arrival: Arrival, namespace: str) -> bool:
    """Return whether another program sent the message. Umbel's own are CloudEvents in headers."""
    return arrival.read().attributes.get("source") != source_of(namespace)


def read(arrival: Arrival, namespace: str, job: str) -> Envelope:
    """Return the envelope of a message, with the given id and namespace and the lane's queue.

    Raises:
        BadMessage: it is not a CloudEvent, or a field has the wrong form; it names the field.
    """
    found = read_message(*arrival.read(), arrival.data)
    return replace(found, id=job, namespace=namespace, queue=arrival.lane.queue)


def build_placeholder(arrival: Arrival, namespace: str, job: str) -> Envelope:
    """Return the job that is recorded, and then buried, for a message that cannot be read.

    It keeps the reply address, so that the sender learns of the burial.
    """
    attributes, content_type = arrival.read()
    return Envelope(
        id=job,
        subject=UNREADABLE,
        body=Body(content_type or "application/octet-stream", arrival.data),
        namespace=namespace,
        queue=arrival.lane.queue,
        kind=arrival.lane.kind,
        headers=read_reply_headers(attributes, arrival.data),
    )


def build_burial(delivery: Delivery, problem: str, now: float) -> Settlement:
    """Return the settlement that buries a job that can never run."""
    attempt = Attempt(delivery.attempt, "", now, now, "rejected", reason=problem)
    return Settlement(lease=delivery.lease, outcome=Rejected(problem), attempt=attempt)
