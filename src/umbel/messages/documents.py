"""Documents: the reply to a sender that asked for the outcome of its job.

A sender asks with the attribute ``replyto`` of its command: an address that the transport knows.
The reply is a CloudEvent of type ``umbel.document`` with the job's id and final state. Its data is
the result, or the failure if there is no result.
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
MAX_ADDRESS_LENGTH, MAX_CORRELATION_LENGTH = 1024, 255
_MAX_REASON_LENGTH = 1000
"""Characters of a reason in the attribute; the data has the whole reason."""


class ReplyRequest(msgspec.Struct, frozen=True):
    """Where the document of a job is to be sent."""

    address: str
    correlation: str
    """The sender's correlation id, or the job's id if it gave none."""


def find_reply_request(job: str, headers: Mapping[str, str]) -> ReplyRequest | None:
    """Return the reply request in a job's headers; None if there is no valid address."""
    address = headers.get(REPLY_TO)
    if not address or len(address) > MAX_ADDRESS_LENGTH:
        return None
    correlation = headers.get(CORRELATION)
    return ReplyRequest(
        address, correlation if correlation and len(correlation) <= MAX_CORRELATION_LENGTH else job
    )


def make_document(job: str, task: str, namespace: str, end: Finish, at: float) -> Envelope:
    """Return the document about the end of a job."""
    headers = {"state": end.state.value}
    if end.reason:
        headers["reason"] = _to_header_text(end.reason)[:_MAX_REASON_LENGTH]
    return Envelope(
        id=job,
        type=MessageType.DOCUMENT,
        subject=task,
        namespace=namespace,
        created=at,
        body=_make_body(end),
        headers=headers,
    )


def document_from_record(record: Record) -> Envelope:
    """Return the document about a job that has ended already."""
    end = Finish(record.state, record.result, record.failure, record.reason)
    return make_document(record.id, record.task, record.namespace, end, record.finished or 0.0)


def add_correlation(document: Envelope, request: ReplyRequest) -> Envelope:
    """Return the document with the correlation id of one request."""
    return replace(document, headers={**document.headers, CORRELATION: request.correlation})


def without_data(document: Envelope, limit: int) -> Envelope:
    """Return a document without its data, which is too large; the reason says where it is."""
    size = len(document.body.data)
    reason = f"data: {size:,} bytes, but the limit is {limit:,}; see the job's record"
    body = Body(JSON, b"null")
    return replace(document, body=body, headers={**document.headers, "reason": reason})


def _to_header_text(reason: str) -> str:
    """Replace the characters that no header can contain."""
    return reason.replace("\0", "\ufffd").encode(errors="replace").decode()


def _make_body(end: Finish) -> Body:
    if end.state is State.SUCCEEDED:
        return end.result or Body(JSON, b"null")
    if end.failure is not None:
        return Body(JSON, msgspec.json.encode(end.failure))
    return Body(JSON, msgspec.json.encode({"message": _to_header_text(end.reason)}))
