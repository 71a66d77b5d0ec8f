"""Bodies: values become bytes and come back as the types a task declares."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import pickle
import re
import uuid
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.errors import BadMessage, ConfigurationError, MessageTooLarge, NotEncodable
from umbel.messages import JSON, MESSAGEPACK, PICKLE, Body, BodyCodec, decode_as

CODECS = {
    "json": BodyCodec(),
    "msgpack": BodyCodec(content_type=MESSAGEPACK),
    "pickle": BodyCodec(content_type=PICKLE, pickle_key=b"key"),
}
OPEN = [pytest.param(CODECS[name], id=name) for name in ("json", "msgpack")]
ALL = [pytest.param(codec, id=name) for name, codec in CODECS.items()]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Point:
    x: int
    label: str
    when: datetime | None = None


class Order(msgspec.Struct):
    id: uuid.UUID
    total: Decimal
    lines: list[Point]


class User(pydantic.BaseModel):
    name: str
    born: date
    tags: list[str] = []


zones = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])
moments = st.datetimes(min_value=datetime(1900, 1, 1), timezones=zones)
points = st.builds(Point, x=st.integers(-(2**63), 2**63 - 1), label=st.text(), when=st.none())
TYPED: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "datetime": (datetime, moments),
    "naive datetime": (datetime, st.datetimes()),
    "date": (date, st.dates()),
    "time": (time, st.times()),
    "timedelta": (timedelta, st.timedeltas(timedelta(days=-9999), timedelta(days=9999))),
    "uuid": (uuid.UUID, st.uuids()),
    "decimal": (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    "bytes": (bytes, st.binary()),
    "enum": (Colour, st.sampled_from(Colour)),
    "int enum": (Level, st.sampled_from(Level)),
    "dataclass": (Point, points),
    "struct": (
        Order,
        st.builds(
            Order, id=st.uuids(), total=st.just(Decimal("1.10")), lines=st.lists(points, max_size=3)
        ),
    ),
    "pydantic": (User, st.builds(User, name=st.text(), born=st.dates())),
    "list of pydantic": (list[User], st.lists(st.builds(User, name=st.text(), born=st.dates()))),
    "pydantic or none": (User | None, st.none()),
    "path": (Path, st.sampled_from([Path("/a/b"), Path("c")])),
    "pure path": (PurePosixPath, st.just(PurePosixPath("/x"))),
    "set": (set[int], st.sets(st.integers(-1000, 1000))),
    "tuple": (tuple[int, str], st.tuples(st.integers(0, 9), st.text())),
    "dict by int": (dict[int, str], st.dictionaries(st.integers(-99, 99), st.text())),
    "dict by uuid": (dict[uuid.UUID, int], st.dictionaries(st.uuids(), st.integers(0, 9))),
    "float": (float, st.floats(allow_nan=False, allow_infinity=False)),
    "optional datetime": (datetime | None, st.none() | moments),
}
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@pytest.mark.parametrize("codec", OPEN)
@pytest.mark.parametrize("kind", TYPED)
@given(data=st.data())
def test_a_value_comes_back_as_the_type_that_is_declared(
    kind: str, codec: BodyCodec, data: st.DataObject
) -> None:
    annotation, values = TYPED[kind]
    value = data.draw(values)
    assert decode_as(codec.decode(codec.encode(value)), annotation, "x") == value


@pytest.mark.parametrize("codec", ALL)
@given(value=plain)
def test_plain_data_comes_back_as_it_was(codec: BodyCodec, value: Any) -> None:
    assert codec.decode(codec.encode(value)) == value


def test_message_pack_keeps_bytes_and_not_a_number() -> None:
    codec = CODECS["msgpack"]
    data, number = codec.decode(codec.encode([b"\x00\xff", math.nan]))
    assert data == b"\x00\xff"
    assert math.isnan(number)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(value=anything)
def test_json_carries_a_value_as_it_is_or_refuses_it_and_names_the_place(value: Any) -> None:
    try:
        body = CODECS["json"].encode(value, name="value")
    except NotEncodable as refused:
        place, number = re.fullmatch(  # type: ignore[union-attr]
            r"message: (.+) is (NaN|Infinity|-Infinity): JSON .*", str(refused), re.DOTALL
        ).groups()
        found = value
        for index, key, name in re.findall(
            r"\[(\d+)\]|\[(\"(?:[^\"\\]|\\.)*\")\]|\.(\w+)", place, re.DOTALL
        ):
            found = found[int(index) if index else json.loads(key) if key else name]
        assert str(found) == {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}[number]
    else:
        assert CODECS["json"].decode(body) == value


@pytest.mark.parametrize("codec", [CODECS["msgpack"], CODECS["pickle"]])
@given(value=plain, number=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_other_formats_carry_a_value_with_nan_as_it_is(
    codec: BodyCodec, value: Any, number: float
) -> None:
    whole = [value, {"a": number}, number]
    assert repr(codec.decode(codec.encode(whole))) == repr(whole)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({7: math.nan}, "message: [7] is NaN"),
        ({7: math.nan, "big": 2**70}, 'message: ["7"] is NaN'),
        ({1.5: [math.inf]}, "message: [1.5][0] is Infinity"),
        ({b"x": math.nan}, "message: [b'x'] is NaN"),
    ],
)
def test_whatever_the_keys_are_a_number_that_json_lacks_is_refused(value: Any, told: str) -> None:
    with pytest.raises(NotEncodable) as refused:
        CODECS["json"].encode(value)
    assert told in str(refused.value)


def test_a_number_that_json_lacks_is_found_at_any_depth() -> None:
    value: Any = math.nan
    for _ in range(400):
        value = [value]
    with pytest.raises(NotEncodable, match=r"(\[0\]){400} is NaN"):
        CODECS["json"].encode(value)


def test_bytes_that_look_like_nan_are_no_reason_to_refuse_a_value() -> None:
    value = {"data": b"\xcb\x7f\xf8" * 3, "none": None}
    assert b"null" in CODECS["json"].encode(value).data


@pytest.mark.parametrize("codec", OPEN)
def test_a_value_without_a_wire_form_is_refused_with_its_type(codec: BodyCodec) -> None:
    with pytest.raises(NotEncodable, match="object"):
        codec.encode({"args": [object()]})


@pytest.mark.parametrize("codec", OPEN)
@pytest.mark.parametrize("value", ["\udcff", {"\ud800": 1}, {(1, 2): {}, b"x": object()}])
def test_what_cannot_be_encoded_is_never_another_error(codec: BodyCodec, value: Any) -> None:
    with pytest.raises(NotEncodable):
        codec.encode(value)


def test_a_cycle_is_not_encodable() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(NotEncodable):
        CODECS["json"].encode(cycle)


@pytest.mark.parametrize("codec", ALL)
def test_a_body_over_the_limit_is_refused_when_made_and_when_read(codec: BodyCodec) -> None:
    small = BodyCodec(content_type=codec.content_type, limit=1024, pickle_key=b"key")
    with pytest.raises(MessageTooLarge, match="1,024"):
        small.encode("x" * 2000, what="the result")
    with pytest.raises(BadMessage) as caught:
        small.decode(codec.encode("x" * 2000))
    assert caught.value.field == "data"


def test_a_body_of_exactly_the_limit_is_fine() -> None:
    codec = BodyCodec(limit=1024)
    value = "x" * 1022
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("content_type", [JSON, MESSAGEPACK, PICKLE, "text/plain", "", ";"])
@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_as_a_bad_message(content_type: str, data: bytes) -> None:
    with suppress(BadMessage):
        CODECS["pickle"].decode(Body(content_type, data))


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_parameters_and_case_of_a_media_type_do_not_matter(content_type: str) -> None:
    assert CODECS["json"].decode(Body(content_type, b"[1]")) == [1]


def test_an_unknown_media_type_is_refused_by_name() -> None:
    with pytest.raises(BadMessage, match="text/plain") as caught:
        CODECS["json"].decode(Body("text/plain", b"x"))
    assert caught.value.field == "datacontenttype"


def test_pickle_needs_a_key() -> None:
    with pytest.raises(ConfigurationError, match="pickle_key"):
        BodyCodec(content_type=PICKLE)


class Tripwire:
    """Records when it is unpickled."""

    loaded = False

    def __reduce__(self) -> tuple[Any, ...]:
        return (_trip, ())


def _trip() -> None:
    Tripwire.loaded = True


def test_a_pickle_is_not_loaded_where_the_app_has_no_key() -> None:
    body = CODECS["pickle"].encode(Tripwire())
    with pytest.raises(BadMessage, match="pickle"):
        CODECS["json"].decode(body)
    assert not Tripwire.loaded


def test_a_pickle_with_another_signature_is_not_loaded() -> None:
    forged = BodyCodec(content_type=PICKLE, pickle_key=b"other").encode(Tripwire())
    unsigned = Body(PICKLE, pickle.dumps(Tripwire()))
    for body in (forged, unsigned):
        with pytest.raises(BadMessage, match="signature"):
            CODECS["pickle"].decode(body)
    assert not Tripwire.loaded


@given(position=st.integers(0, 200), flip=st.integers(1, 255))
def test_a_pickle_with_any_byte_changed_is_not_loaded(position: int, flip: int) -> None:
    data = bytearray(CODECS["pickle"].encode({"some": "value", "and": [1, 2, 3]}).data)
    data[position % len(data)] ^= flip
    with pytest.raises(BadMessage, match="signature"):
        CODECS["pickle"].decode(Body(PICKLE, bytes(data)))


@pytest.mark.parametrize(
    ("options", "field"),
    [({"content_type": "text/plain"}, "content_type"), ({"limit": 10}, "limit")],
)
def test_a_wrong_option_of_a_codec_is_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError, match=field):
        BodyCodec(**options)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [("x", int), ({"x": 1}, Point), ({"name": 1}, User), ("purple", Colour), ("nope", datetime)],
)
def test_a_value_that_does_not_fit_names_the_field(value: Any, annotation: Any) -> None:
    with pytest.raises(BadMessage) as caught:
        decode_as(value, annotation, "colour")
    assert caught.value.field == "colour"


def test_a_union_that_holds_a_path_accepts_plain_text() -> None:
    assert decode_as("/a", str | Path, "path") in ("/a", Path("/a"))
