"""Whatever is sent, it is read or refused with a reason that names the field."""

from __future__ import annotations

import hashlib
import hmac
import json
import pickle
from typing import Any

import msgspec
import pytest
import targets
from hostile import (
    ODD_NUMBERS,
    ODD_TEXT,
    an_object,
    depths,
    documents,
    kept_texts,
    texts,
    values,
    written,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_event import EVENT
from zoo import PARAMETERS

from umbel.errors import BadMessage, ConfigurationError
from umbel.messages import JSON, MESSAGEPACK, PICKLE, State, wire
from umbel.messages.columns import read_headers
from umbel.resilience import Backoff

PAIRS = [(name, written(value)) for name, value in EVENT.items()]
MOMENTS = (
    *("0001-01-01T00:00:00+23:59", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999-23:59"),
    *("9999-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.5Z", "2016-12-31T23:59:60Z"),
    *("2026-01-31", "2026-01-31T12:00:00", "0000-00-00T00:00:00Z", "2026-01-31t12:00:00z"),
)
one_value = documents | st.sampled_from([written(moment) for moment in MOMENTS])


# --- events ----------------------------------------------------------------------------------


@given(text=documents)
def test_any_json_is_an_event_or_refused(text: str) -> None:
    targets.event(text.encode("utf-8", "surrogatepass"))


@given(
    place=st.integers(0, len(PAIRS)),
    name=st.sampled_from([*EVENT, "data_base64", "malformed", "retry"]) | texts,
    value=one_value,
)
@settings(max_examples=400)
def test_an_event_with_one_field_changed_is_read_or_refused(
    place: int, name: str, value: str
) -> None:
    others = [pair for pair in PAIRS if pair[0] != name]
    pairs = [*others[:place], (name, value), *others[place:]]
    targets.event(an_object(pairs).encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("name", [*EVENT, "data_base64", "malformed", ""])
def test_an_event_with_any_odd_value_in_a_field_is_read_or_refused(name: str) -> None:
    others = [pair for pair in PAIRS if pair[0] not in (name, "data" if "base64" in name else "")]
    odd: list[Any] = [*ODD_TEXT, *ODD_NUMBERS, *MOMENTS, None, True, [], {}, [[]], {"": 1}]
    for value in odd:
        if value != 10**400:
            targets.event(an_object([*others, (name, written(value))]).encode())


@given(pairs=st.lists(st.tuples(st.sampled_from([*EVENT]) | texts, one_value), max_size=4))
def test_an_event_with_repeated_fields_is_read_or_refused(pairs: list[tuple[str, str]]) -> None:
    targets.event(an_object([*PAIRS, *pairs]).encode("utf-8", "surrogatepass"))


@given(missing=st.sets(st.sampled_from([*EVENT])))
def test_an_event_with_fields_missing_is_read_or_refused(missing: set[str]) -> None:
    targets.event(an_object([pair for pair in PAIRS if pair[0] not in missing]).encode())


@given(data=st.data())
def test_an_event_with_some_bytes_changed_is_read_or_refused(data: st.DataObject) -> None:
    targets.event(data.draw(damaged(json.dumps(EVENT).encode())))


@pytest.mark.parametrize("name", ["data", "tenant", "queue", "data_base64"])
def test_an_event_of_any_depth_is_read_or_refused(name: str) -> None:
    # Between what can be read and what can be written again lies a single depth: try them all.
    others = [pair for pair in PAIRS if pair[0] != name]
    for depth in range(700, 1_000):
        nested = "[" * depth + "]" * depth
        targets.event(an_object([*others, (name, nested)]).encode())


@pytest.mark.parametrize("name", ["data", "subject", "tenant", "traceparent", "x" * 100])
def test_an_event_with_ten_megabytes_in_a_field_is_read_or_refused(name: str) -> None:
    others = [pair for pair in PAIRS if pair[0] != name]
    targets.event(an_object([*others, (name, written("x" * 10_000_000))]).encode())


def test_an_event_with_a_name_of_ten_megabytes_is_read_or_refused() -> None:
    targets.event(an_object([*PAIRS, ("x" * 10_000_000, "1")]).encode())


# --- bodies ----------------------------------------------------------------------------------


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The bytes cut off, or with some of them replaced."""
    data = bytearray(whole[: draw(st.integers(0, len(whole)))] if draw(st.booleans()) else whole)
    for place in draw(st.lists(st.integers(0, max(len(data) - 1, 0)), max_size=3)):
        data[place : place + 1] = draw(st.binary(max_size=3))
    return bytes(data)


packable = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary()
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.integers(0, 9) | st.text("ab\x00") | st.none(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(text=documents)
def test_a_json_body_is_decoded_or_refused(text: str) -> None:
    targets.decode_body(JSON, text.encode("utf-8", "surrogatepass"))


@given(data=st.data(), value=packable)
def test_a_messagepack_body_is_decoded_or_refused(data: st.DataObject, value: Any) -> None:
    targets.decode_body(MESSAGEPACK, data.draw(damaged(msgspec.msgpack.encode(value))))


@given(data=st.binary(max_size=60), content_type=texts | st.sampled_from(targets.CONTENT_TYPES))
def test_any_bytes_of_any_type_are_decoded_or_refused(data: bytes, content_type: str) -> None:
    targets.decode_body(content_type, data)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b"\x91", b"\x81\xa1a", b"\xdc\xff\xff"])
@given(depth=depths)
@settings(max_examples=20)
def test_a_body_of_any_depth_is_decoded_or_refused(opening: bytes, depth: int) -> None:
    targets.decode_body(MESSAGEPACK if opening[0] > 127 else JSON, opening * depth)


class Bomb:
    """Unpickling it raises; so does leaving it on the table."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('unpickled')",)


@given(data=st.data(), forged=st.binary(max_size=40))
def test_a_pickle_that_was_not_signed_here_is_never_loaded(
    data: st.DataObject, forged: bytes
) -> None:
    bomb = pickle.dumps(Bomb())
    signature = hmac.digest(b"another key", bomb, hashlib.sha256)
    sent = data.draw(st.sampled_from([bomb, forged + bomb, signature + bomb, signature]))
    targets.decode_body(PICKLE, data.draw(damaged(sent)))


@given(data=st.data())
def test_a_signed_pickle_that_was_damaged_is_refused(data: st.DataObject) -> None:
    text = pickle.dumps({"args": [1]})
    signed = hmac.digest(targets.KEY, text, hashlib.sha256) + text
    targets.decode_body(PICKLE, data.draw(damaged(signed)))


# --- arguments -------------------------------------------------------------------------------

near = st.sampled_from(
    [
        *(1, 2, "x", "red", "a\x00", 13, "2026-01-31", "2026-01-31T12:00:00Z", "12:00:00", "PT1S"),
        *("0190a3f0-0000-7000-8000-000000000001", "1.10", "NaN", "sNaN", "9" * 5_000, "1E+999999"),
        *({"x": 1}, {"x": 13}, {"x": "1"}, {"name": "Ann"}, {"name": ""}, {"name": "A" * 99_999}),
        *({"item": 1}, {"item": [{"item": 1}]}, {"type": "Cat", "lives": 9}, {"type": "\x00"}),
        *({"value": 1, "left": {"value": 2}}, [1.5, 2], {"depth": 1}, {"1": "x"}, ["red"] * 2),
        *({"name": "A", "friends": [{"name": "B", "friends": [{"name": 0}]}]}, *ODD_NUMBERS),
    ]
)
arguments = near | values
names = st.sampled_from([*"abcdef", "flag", "rest", "self", "args", "kwargs", ""]) | texts
calls = st.fixed_dictionaries(
    {},
    optional={
        "args": st.lists(arguments, max_size=6) | values,
        "kwargs": st.dictionaries(names, arguments, max_size=5) | values,
    },
)


@pytest.mark.parametrize("number", range(len(PARAMETERS)), ids=lambda n: PARAMETERS[n].task)
@given(value=calls)
@settings(max_examples=60)
def test_any_call_fits_its_task_or_is_refused(number: int, value: Any) -> None:
    targets.decode_call(number, value)


@given(value=values | packable)
def test_what_is_no_call_is_refused(value: Any) -> None:
    for number in range(len(PARAMETERS)):
        targets.decode_call(number, value)


@pytest.mark.parametrize("number", range(len(PARAMETERS)), ids=lambda n: PARAMETERS[n].task)
def test_a_call_of_any_depth_fits_its_task_or_is_refused(number: int) -> None:
    for depth in (10, 500, 900, 940, 960, 2_000):
        value: Any = 0
        for _ in range(depth):
            value = {"value": 1, "left": value, "x": 1, "within": value, "item": value}
        targets.decode_call(number, {"args": [value] * 6})


# --- columns of hand-written rows ------------------------------------------------------------

attempts = st.lists(
    st.dictionaries(
        st.sampled_from(["number", "worker", "started", "finished", "ended", "failure", "delay"]),
        values,
    ),
    max_size=3,
).map(written)
attempt = {"number": 1, "worker": "w", "started": 1.0, "finished": 2.0, "ended": "retry"}
stories = st.tuples(st.sampled_from([*attempt, "delay"]), st.sampled_from(ODD_NUMBERS)).map(
    lambda change: written([attempt | {change[0]: change[1]}])
)
failures = st.dictionaries(st.sampled_from(["type", "message", "traceback", "args"]), values)


@given(text=documents | attempts | stories | failures.map(written) | st.text(st.characters()))
@settings(max_examples=200)
def test_a_json_column_of_any_shape_is_read(text: str) -> None:
    targets.read_columns(text)


policies = st.dictionaries(
    st.sampled_from(["times", "first", "factor", "cap", "jitter", "on", "never", "self"]) | texts,
    values,
    max_size=4,
)


options = documents | policies.map(written) | kept_texts | st.sampled_from(ODD_NUMBERS).map(str)


@given(
    found=st.dictionaries(
        st.sampled_from(["retry", "timeout", "track"]) | kept_texts, options, max_size=4
    )
)
def test_options_in_headers_are_applied_or_refused(found: dict[str, str]) -> None:
    targets.activate(found)


@given(subject=texts.map(lambda text: text[:255]), data=documents)
def test_a_job_of_any_task_and_body_runs_or_is_rejected(subject: str, data: str) -> None:
    targets.activate({}, data.encode("utf-8", "surrogatepass"), subject)


moments = st.none() | st.floats(allow_nan=False) | st.sampled_from([0.0, -1e12, 253402300800.0])
bodies = documents.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=40)
types = st.sampled_from([t for t in targets.CONTENT_TYPES if t != "\ud800"])
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("id", "task", "namespace", "queue", "worker", "reason", "unique"), kept_texts),
    **dict.fromkeys(("created", "not_before", "expires", "started", "finished"), moments),
    **dict.fromkeys(("done", "of"), st.none() | st.floats()),
    **dict.fromkeys(("priority", "attempt", "deaths"), st.integers(-(2**63), 2**63 - 1)),
    **dict.fromkeys(("body", "result"), bodies | calls.map(lambda v: written(v).encode())),
    "content_type": types,
    "result_type": st.none() | types,
    "trace": st.none() | kept_texts,
    "state": st.sampled_from(State),
    "headers": documents,
    "gate": st.none() | kept_texts,
    "slots": st.none() | documents,
    "attempts": stories | documents,
    "failure": documents | failures.map(written),
}


@pytest.mark.parametrize("column", COLUMNS)
@given(data=st.data(), state=st.sampled_from(State))
@settings(max_examples=30)
def test_a_row_with_one_column_changed_is_shown(
    column: str, data: st.DataObject, state: State
) -> None:
    targets.show(**{"state": state, column: data.draw(COLUMNS[column])})


@given(row=st.fixed_dictionaries({}, optional=COLUMNS))
def test_a_row_with_any_columns_changed_is_shown(row: dict[str, Any]) -> None:
    targets.show(**row)


def test_a_body_of_any_depth_is_shown() -> None:
    for depth in range(700, 1_000):
        targets.show(body=b"[" * depth + b"]" * depth)


# --- what was found once ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        {"body": b'{"args": 5}'},
        {"body": b'{"kwargs": [1]}'},
        {"body": b"\x81\xc0\x01", "content_type": MESSAGEPACK},
        {"body": b"\x81\x91\x01\x01", "content_type": MESSAGEPACK},
        {"result": b"1", "result_type": None},
        {"created": float("inf")},
        {"not_before": 253402300800.0},
        {"started": -1e300, "finished": 1e300},
        {"done": float("nan"), "of": 1.0},
        {"done": float("inf"), "of": float("inf")},
        {"attempts": written([attempt | {"started": -1e308, "finished": 1e308}])},
    ],
    ids=str,
)
def test_a_row_that_once_could_not_be_shown_is_shown(row: dict[str, Any]) -> None:
    targets.show(**row)


def test_options_in_a_row_written_manually_need_no_quotes() -> None:
    found = read_headers('{"retry": {"times": 3}, "timeout": 5, "tenant": null, "urgent": true}')
    assert found == {"retry": '{"times":3}', "timeout": "5", "urgent": "true"}


@pytest.mark.parametrize("name", ["first", "cap"])
def test_a_wait_that_no_database_can_hold_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Backoff(**{name: 1e300})


def test_an_event_with_too_much_around_its_data_is_refused() -> None:
    with pytest.raises(BadMessage, match="attributes"):
        wire.read(written(EVENT | {f"x{n}": "x" * 1_000 for n in range(70)}).encode())
