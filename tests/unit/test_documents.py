"""A result is a document: a message about its task, with nothing to be done (C1)."""

from __future__ import annotations

import json

import jsonschema

from umbel.messages import BodyCodec, MessageType, Record, State, wire


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
