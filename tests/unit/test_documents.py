"""A result is a document: a message about its task, with nothing to be done (C1)."""

from __future__ import annotations

import json

import jsonschema
import pytest

from umbel.errors import BadMessage
from umbel.messages import BodyCodec, Finish, MessageType, Record, State, wire
from umbel.messages.documents import (
    ReplyRequest,
    add_correlation,
    document_from_record,
    make_document,
)


def record(**fields: object) -> Record:
    about = {"id": "01890000-0000-7000-8000-000000000001", "task": "shop.order", "queue": "q"}
    body = BodyCodec().encode({"args": [], "kwargs": {}})
    base = {**about, "namespace": "shop", "state": State.SUCCEEDED, "created": 1.0, "body": body}
    return Record(**{**base, **fields})  # type: ignore[arg-type]


def test_a_result_travels_as_a_document_that_the_schema_accepts() -> None:
    found = record(result=BodyCodec().encode({"total": 42}), finished=5.0).document
    assert found is not None
    event = wire.write(found.envelope("shop"))
    jsonschema.validate(json.loads(event), wire.schema())
    read = wire.read(event)
    assert (read.type, read.subject, read.created) == (MessageType.DOCUMENT, "shop.order", 5.0)
    assert BodyCodec().decode(read.body) == {"total": 42}


def test_a_job_without_a_result_gives_no_document() -> None:
    assert record(finished=5.0).document is None
    assert record(state=State.RUNNING).document is None


def test_a_reason_of_any_length_and_any_sign_fits_an_attribute() -> None:
    end = Finish(State.BURIED, reason="nul \0, surrogate \ud800, " + "x" * 5000)
    document = make_document("01890000-0000-7000-8000-000000000001", "shop.order", "shop", end, 5.0)
    reason = document.headers["reason"]
    assert len(reason) == 1000
    assert reason.startswith("nul \ufffd, surrogate ?, xxx")


def test_who_asks_may_stand_beside_a_structured_event() -> None:
    event = wire.write(document_from_record(record(finished=5.0)))
    found = wire.read_message({"replyto": "here", "id": "x"}, wire.MEDIA_TYPE, event)
    assert found.headers == {"state": "succeeded", "replyto": "here"}
    inside = wire.write(add_correlation(found, ReplyRequest("here", "7")))
    again = wire.read_message({"replyto": "there", "correlationid": "8"}, wire.MEDIA_TYPE, inside)
    assert again.headers == {"state": "succeeded", "replyto": "here", "correlationid": "7"}


@pytest.mark.parametrize("name", ["replyto", "correlationid"])
@pytest.mark.parametrize("value", ["", 7, [], "x" * 1025, "nul\0"])
def test_who_asks_has_to_be_a_text(name: str, value: object) -> None:
    event = json.loads(wire.write(document_from_record(record(finished=5.0))))
    with pytest.raises(BadMessage, match=f"^{name}: must"):
        wire.read(json.dumps({**event, name: value}).encode())


@pytest.mark.parametrize(
    ("attributes", "data", "found"),
    [
        ({"replyto": "a"}, b"no event", {"replyto": "a"}),
        (
            {},
            b'{"replyto": "a", "correlationid": "7", "id": 3}',
            {"replyto": "a", "correlationid": "7"},
        ),
        ({"replyto": "a"}, b'{"replyto": "b"}', {"replyto": "a"}),
        ({}, b'{"replyto": 7, "correlationid": "x\\u0000"}', {}),
        ({"replyto": "x" * 1025}, b"[]", {}),
        ({}, b"\xff", {}),
    ],
)
def test_a_message_that_cannot_be_read_may_still_say_who_asks(
    attributes: dict[str, str], data: bytes, found: dict[str, str]
) -> None:
    assert wire.read_reply_headers(attributes, data) == found
