"""The wire form: every envelope survives it, and nothing but BadMessage comes out of bad bytes."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import jsonschema
import msgspec
import pytest
from cloudevents.v1.conversion import to_json
from cloudevents.v1.http import CloudEvent
from hypothesis import example, given
from hypothesis import strategies as st

from umbel.errors import BadMessage
from umbel.messages import (
    AFFINITY_KEY,
    GROUP_HEADER,
    JSON,
    MESSAGEPACK,
    NODE_HEADER,
    Body,
    Envelope,
    MessageType,
    fresh_id,
    wire,
)

VALIDATOR = jsonschema.Draft202012Validator(wire.schema())
BASE: dict[str, Any] = {
    "specversion": "1.0",
    "id": "0190a3f0-0000-7000-8000-000000000001",
    "type": "umbel.command",
    "source": "/tests",
    "subject": "tests.add",
    "data": {"args": [1, 2], "kwargs": {}},
}

letters = st.characters(exclude_characters="\x00", exclude_categories=["Cs"])
names = st.text(letters, min_size=1, max_size=63)
times = st.integers(0, 4_000_000_000_000_000).map(lambda micros: micros / 1_000_000)
bodies = st.builds(
    Body,
    st.just(JSON),
    st.lists(st.integers(0, 99) | st.text(letters)).map(
        lambda args: msgspec.json.encode({"args": args, "kwargs": {}})
    ),
) | st.builds(Body, st.just(MESSAGEPACK), st.binary(min_size=1))
envelopes = st.builds(
    Envelope,
    id=st.uuids().map(str),
    subject=names,
    body=bodies,
    type=st.sampled_from(MessageType),
    namespace=names,
    queue=names,
    kind=st.sampled_from(["", "io", "cpu"]),
    priority=st.integers(-32768, 32767),
    created=times,
    not_before=st.none() | times,
    expires=st.none() | times,
    attempt=st.integers(1, 2**31 - 1),
    max_deaths=st.integers(1, 32767),
    unique=st.none() | names,
    on_conflict=st.just("raise"),
    traceparent=st.none() | names,
    headers=st.dictionaries(
        st.from_regex(r"[a-z]{1,10}x9", fullmatch=True), st.text(letters), max_size=3
    ),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(envelope=envelopes)
def test_every_envelope_survives_the_wire(envelope: Envelope) -> None:
    assert wire.read(wire.write(envelope)) == envelope


@given(envelope=envelopes)
def test_every_envelope_written_is_valid_by_the_schema(envelope: Envelope) -> None:
    VALIDATOR.validate(json.loads(wire.write(envelope)))


@pytest.mark.parametrize("choice", ["raise", "return", "replace"])
def test_what_to_do_on_conflict_travels_with_a_unique_key(choice: str) -> None:
    sent = wire.read(_event(uniquekey="only"))
    sent = msgspec.structs.replace(sent, on_conflict=choice)
    assert wire.read(wire.write(sent)).on_conflict == choice


def test_the_least_a_sender_has_to_write_is_enough() -> None:
    VALIDATOR.validate(BASE)
    read = wire.read(_event())
    assert (read.namespace, read.queue, read.kind) == ("umbel", "default", "")
    assert (read.priority, read.attempt, read.max_deaths) == (0, 1, 3)
    assert json.loads(read.body.data) == BASE["data"]


def test_an_event_of_the_cloudevents_library_is_read() -> None:
    job = fresh_id()
    attributes = {
        "id": job,
        "type": "umbel.command",
        "source": "https://elsewhere.example",
        "subject": "tests.add",
        "time": "2026-01-31T12:00:00Z",
        "datacontenttype": "application/json",
        "queue": "mail",
        "priority": "7",
        "tenant": "acme",
    }
    read = wire.read(to_json(CloudEvent(attributes, {"args": [1], "kwargs": {"b": 2}})))
    assert (read.id, read.queue, read.priority) == (job, "mail", 7)
    assert read.created == datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
    assert json.loads(read.body.data) == {"args": [1], "kwargs": {"b": 2}}
    assert read.headers == {"tenant": "acme"}


def test_binary_data_of_the_cloudevents_library_is_read() -> None:
    attributes = {
        "id": fresh_id(),
        "type": "umbel.command",
        "source": "x",
        "subject": "tests.add",
        "datacontenttype": MESSAGEPACK,
    }
    packed = msgspec.msgpack.encode({"args": [1], "kwargs": {}})
    assert wire.read(to_json(CloudEvent(attributes, packed))).body == Body(MESSAGEPACK, packed)


BAD: dict[str, list[Any]] = {
    "specversion": [None, "0.3", 1.0, ["1.0"]],
    "id": [None, "", 7, "not-a-uuid", "x" * 32, "0190a3f0-0000-7000-8000-00000000000", {}],
    "type": [None, "", "umbel.unknown", 3, {}, []],
    "source": ["", 7],
    "subject": [None, "", 5, "x" * 256, "a\x00b", []],
    "time": ["yesterday", 5, {}, "2026-13-01T00:00:00Z"],
    "datacontenttype": ["", 5, []],
    "namespace": ["", 5, "x" * 64, "a\x00"],
    "queue": ["", 5, "x" * 256, "a\x00", {}],
    "kind": ["gpu", 5, [], {}],
    "priority": ["high", 1.5, 40000, -40000, True, "--5", "", "-", "9" * 20, [], {}, "1_0", "²"],
    "notbefore": ["later", 5, [], "0000-00-00T00:00:00Z", "PT", "P1D", "PT-1S", "PT1e9S"],
    "expiry": ["never", 5, {}, "PT1M", "pt5s", "PT5S ", "PT5.S"],
    "attempt": [0, -1, "x", 2**40, False, [], "--1"],
    "maxdeaths": [0, -1, "x", 40000, [], "--1"],
    "uniquekey": ["", 5, "x" * 256, "a\x00", []],
    "onconflict": ["ignore", 5, []],
    "traceparent": [5, [], "x" * 5000],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, bad in BAD.items() for value in bad]
)
def test_a_field_of_the_wrong_form_is_named(field: str, value: Any) -> None:
    with pytest.raises(BadMessage) as caught:
        wire.read(_event(**{field: value}))
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize("field", wire.schema()["required"])
def test_a_field_that_is_missing_is_named(field: str) -> None:
    event = {name: value for name, value in BASE.items() if name != field}
    with pytest.raises(BadMessage) as caught:
        wire.read(json.dumps(event).encode())
    assert caught.value.field == field


@pytest.mark.parametrize("data", [5, "%%%", "ä", "YQ=", "🌱", None, []])
def test_data_that_is_not_base64_is_named(data: Any) -> None:
    event = {name: value for name, value in BASE.items() if name != "data"}
    event |= {"datacontenttype": MESSAGEPACK, "data_base64": data}
    with pytest.raises(BadMessage) as caught:
        wire.read(json.dumps(event).encode())
    assert caught.value.field == "data_base64"


def test_a_message_without_data_is_refused() -> None:
    event = {name: value for name, value in BASE.items() if name != "data"}
    with pytest.raises(BadMessage) as caught:
        wire.read(json.dumps(event).encode())
    assert caught.value.field == "data"


def test_json_data_of_another_media_type_is_refused() -> None:
    with pytest.raises(BadMessage) as caught:
        wire.read(_event(datacontenttype="text/plain"))
    assert caught.value.field == "data"


def test_data_in_two_forms_is_refused() -> None:
    with pytest.raises(BadMessage):
        wire.read(_event(data_base64="YQ=="))


@given(data=st.binary())
def test_any_bytes_are_read_or_refused_as_a_bad_message(data: bytes) -> None:
    _read_or_refuse(data)


@given(value=values)
def test_any_json_is_read_or_refused_as_a_bad_message(value: Any) -> None:
    _read_or_refuse(json.dumps(value).encode())


@given(changes=st.dictionaries(st.sampled_from([*BAD, "data", "data_base64", "ext"]), values))
def test_any_event_with_some_fields_wrong_is_read_or_refused(changes: dict[str, Any]) -> None:
    _read_or_refuse(json.dumps(BASE | changes).encode())


@given(changes=st.dictionaries(st.sampled_from([*BAD, "data_base64"]), st.text()))
def test_any_event_with_some_text_wrong_is_read_or_refused(changes: dict[str, str]) -> None:
    _read_or_refuse(json.dumps(BASE | changes).encode())


@pytest.mark.parametrize("depth", [10, 500, 900, 990, 1000, 1100, 100_000])
def test_deeply_nested_json_is_read_or_refused(depth: int) -> None:
    _read_or_refuse(b"[" * depth + b"]" * depth)
    for field in (b"data", b"ext"):
        nested = b"[" * depth + b"]" * depth
        _read_or_refuse(json.dumps(BASE).encode()[:-1] + b', "' + field + b'": ' + nested + b"}")


@given(changes=st.dictionaries(st.sampled_from(["queue", "kind", "priority", "namespace"]), values))
@example(changes={"priority": 5.0})
def test_what_the_schema_accepts_is_read(changes: dict[str, Any]) -> None:
    event = BASE | changes
    checked = jsonschema.Draft202012Validator(
        wire.schema(), format_checker=jsonschema.FormatChecker()
    )
    if checked.is_valid(event):
        wire.read(json.dumps(event).encode())


@given(
    delay=st.none() | st.integers(0, 10**16).map(lambda micros: micros / 1_000_000),
    expires_in=st.none() | st.floats(0, 10_000_000_000),
)
def test_seconds_travel_as_durations(delay: float | None, expires_in: float | None) -> None:
    body = Body(JSON, b'{"args":[],"kwargs":{}}')
    sent = Envelope(
        id=BASE["id"], subject="tests.add", body=body, delay=delay, expires_in=expires_in
    )
    written = wire.write(sent)
    VALIDATOR.validate(json.loads(written))
    binary = wire.read_message(wire.attributes(sent), JSON, body.data)
    for found in (wire.read(written), binary):
        assert (found.not_before, found.expires, found.created) == (None, None, 0.0)
        assert found.delay == pytest.approx(delay, abs=1e-6)
        assert found.expires_in == pytest.approx(expires_in, abs=1e-6)


def test_the_key_of_a_route_is_an_attribute() -> None:
    gates = ("limit:tests.add", "route:##7")
    sent = msgspec.structs.replace(wire.read(_event()), gates=gates)
    written = json.loads(wire.write(sent))
    VALIDATOR.validate(written)
    assert written["affinitykey"] == "#7"
    binary = wire.read_message(wire.attributes(sent), JSON, b"{}")
    for found in (wire.read(wire.write(sent)), binary):
        assert (found.headers, found.gates) == ({"affinitykey": "#7"}, ())
    assert "affinitykey" not in json.loads(wire.write(wire.read(_event())))


@pytest.mark.parametrize("key", ["", "x" * 256, 7, "a\0b"])
def test_a_wrong_key_of_a_route_is_refused_by_name(key: Any) -> None:
    assert not VALIDATOR.is_valid(BASE | {"affinitykey": key}) or "\0" in str(key)
    with pytest.raises(BadMessage, match=r"^affinitykey: "):
        wire.read(_event(affinitykey=key))


@pytest.mark.parametrize("kind", ["", "io", "cpu", "box", "x"])
def test_the_schema_has_the_kinds_that_are_read(kind: str) -> None:
    is_read = False
    with suppress(BadMessage):
        wire.read(_event(kind=kind))
        is_read = True
    assert VALIDATOR.is_valid(BASE | {"kind": kind}) == is_read


def test_the_schema_describes_the_attributes_of_nodes() -> None:
    described = wire.schema()["properties"]
    assert {GROUP_HEADER, NODE_HEADER, AFFINITY_KEY} <= described.keys()


@pytest.mark.parametrize("field", ["traceparent", "datacontenttype", "data_base64"])
def test_text_the_schema_lets_be_empty_is_read(field: str) -> None:
    event = BASE | {field: ""}
    if field == "data_base64":
        del event["data"]
    if VALIDATOR.is_valid(event):
        wire.read(json.dumps(event).encode())


@pytest.mark.parametrize("value", [math.nan, -math.inf, {"a": [math.inf]}])
def test_an_attribute_that_is_not_finite_is_refused_by_name(value: Any) -> None:
    attributes = {name: text for name, text in BASE.items() if name != "data"}
    with pytest.raises(BadMessage, match=r"^weight: .* JSON cannot carry it"):
        wire.read_message({**attributes, "weight": value}, JSON, b"{}")


def test_a_header_never_replaces_a_field_of_the_message() -> None:
    sent = msgspec.structs.replace(wire.read(_event()), headers={"subject": "tests.other"})
    assert wire.read(wire.write(sent)).subject == "tests.add"


def _event(**changes: Any) -> bytes:
    return json.dumps(BASE | changes).encode()


def _read_or_refuse(data: bytes) -> None:
    with suppress(BadMessage):
        wire.read(data)
