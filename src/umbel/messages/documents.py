"""What a sender hears who asked to be told how its job ended.

Asking is an attribute of the command, ``replyto``: an address that the transport knows. The answer
is a CloudEvent of type ``umbel.document`` with the job's id and the state it ended in; its data is
the result, or, when there is none, what went wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from umbel.messages.bodies import JSON, Body
from umbel.messages.envelopes import Envelope, MessageType
from umbel.messages.records import Record
from umbel.messages.settlements import Finish
from umbel.messages.states import State

REPLY_TO = "replyto"
CORRELATION = "correlationid"
ADDRESS_LIMIT, CORRELATION_LIMIT = 1024, 255
"""Characters that each may have."""
_LONGEST = 1000
"""Characters of a reason that travel as an attribute; the data has all of it."""


class Asked(msgspec.Struct, frozen=True):
    """Who wants to hear of a job."""

    address: str
    correlation: str
    """What the asker knows its question by: its own word, or the job's id."""


def asked_by(job: str, headers: Mapping[str, str]) -> Asked | None:
    """Who wants to hear of this job; None when nobody does, or at no address."""
    address = headers.get(REPLY_TO)
    if not address or len(address) > ADDRESS_LIMIT:
        return None
    word = headers.get(CORRELATION)
    return Asked(address, word if word and len(word) <= CORRELATION_LIMIT else job)


def answer(job: str, task: str, namespace: str, end: Finish, at: float) -> Envelope:
    """How a job ended, as a message."""
    headers = {"state": end.state.value}
    if end.reason:
        headers["reason"] = _sendable(end.reason)[:_LONGEST]
    return Envelope(
        id=job,
        type=MessageType.DOCUMENT,
        subject=task,
        namespace=namespace,
        created=at,
        body=_data(end),
        headers=headers,
    )


def answer_from(record: Record) -> Envelope:
    """The same, of a job that has ended already."""
    end = Finish(record.state, record.result, record.failure, record.reason)
    return answer(record.id, record.task, record.namespace, end, record.finished or 0.0)


def addressed(document: Envelope, asked: Asked) -> Envelope:
    """A document as one asker gets it: with the word that it knows its question by."""
    return replace(document, headers={**document.headers, CORRELATION: asked.correlation})


def without_data(document: Envelope, limit: int) -> Envelope:
    """A document whose data nobody can carry: the end alone, and where the rest is."""
    many = len(document.body.data)
    reason = f"data: {many:,} bytes, {limit:,} can be carried; the job's record has them"
    body = Body(JSON, b"null")
    return replace(document, body=body, headers={**document.headers, "reason": reason})


def _sendable(reason: str) -> str:
    """Without the signs that no header takes."""
    return reason.replace("\0", "\ufffd").encode(errors="replace").decode()


def _data(end: Finish) -> Body:
    if end.state is State.SUCCEEDED:
        return end.result or Body(JSON, b"null")
    if end.failure is not None:
        return Body(JSON, msgspec.json.encode(end.failure))
    return Body(JSON, msgspec.json.encode({"message": _sendable(end.reason)}))
