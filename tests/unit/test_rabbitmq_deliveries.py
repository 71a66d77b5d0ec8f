"""Messages that are read by ourselves are those that pika reads, however they are cut up."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import BasicProperties, frame, spec

from umbel.backends.rabbitmq.deliveries import Delivery, Told, pushed
from umbel.backends.rabbitmq.pika_connection import Wire

CONSUMER, OURS, THEIRS, LARGEST = "umbel", 3, 4, 4096
ROOM = LARGEST - spec.FRAME_HEADER_SIZE - spec.FRAME_END_SIZE

word = st.text(st.characters(codec="utf-8"), max_size=20)
value = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31) | word | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(word, inner, max_size=3),
    max_leaves=5,
)
properties = st.builds(
    BasicProperties,
    content_type=st.none() | word,
    content_encoding=st.none() | word,
    headers=st.none() | st.dictionaries(word, value, max_size=4),
    delivery_mode=st.none() | st.just(2),
    priority=st.none() | st.integers(0, 9),
    correlation_id=st.none() | word,
    reply_to=st.none() | word,
    message_id=st.none() | word,
    timestamp=st.none() | st.integers(0, 2**32),
)
bodies = st.binary(max_size=30) | st.sampled_from([ROOM, ROOM + 1, 3 * ROOM]).map(bytes)


def message(
    tag: int,
    told: BasicProperties,
    body: bytes,
    *,
    channel: int = OURS,
    consumer: str = CONSUMER,
) -> list[bytes]:
    """The frames of a message that the server pushes."""
    deliver = spec.Basic.Deliver(consumer, tag, False, "", "a queue")
    return [
        frame.Method(channel, deliver).marshal(),
        frame.Header(channel, len(body), told).marshal(),
        *(frame.Body(channel, body[at : at + ROOM]).marshal() for at in range(0, len(body), ROOM)),
    ]


def as_pika_reads(told: BasicProperties) -> BasicProperties:
    return BasicProperties().decode(b"".join(told.encode()))


@given(properties, bodies, st.binary(max_size=20), st.binary(max_size=20))
def test_a_message_says_what_pika_reads_in_it(
    told: BasicProperties, body: bytes, before: bytes, after: bytes
) -> None:
    said = b"".join(message(7, told, body))
    found = pushed(before + said + after, len(before))
    assert found is not None
    assert (found.channel, found.consumer, found.end) == (OURS, b"umbel", len(before) + len(said))
    assert (found.delivery.tag, found.delivery.body) == (7, body)
    expected = Delivery(7, as_pika_reads(told), body)
    assert found.delivery.read() == expected.read()
    for name in told.headers or {}:
        glimpsed = found.delivery.glimpse(name)
        assert glimpsed is None or glimpsed == expected.glimpse(name)


def test_an_id_is_told_at_a_glance() -> None:
    told = BasicProperties(headers={"cloudEvents_type": "x", "cloudEvents_id": "the id"})
    found = pushed(b"".join(message(1, told, b"")), 0)
    assert found is not None
    assert found.delivery.glimpse("cloudEvents_id") == "the id"
    assert found.delivery.glimpse("cloudEvents_source") is None


@pytest.mark.parametrize(
    "headers",
    [
        {"from": {"cloudEvents_id": "of another"}, "cloudEvents_id": "its own"},
        {"note": "\x0ecloudEvents_idS\0\0\0\x02no", "cloudEvents_id": "its own"},
        {"number": 7, "cloudEvents_id": "its own"},
        {"from": {"cloudEvents_id": "of another"}},
    ],
    ids=["in a table", "in a text", "after a number", "in a table alone"],
)
def test_an_id_that_stands_elsewhere_is_not_taken_for_its_own(headers: dict[str, Any]) -> None:
    found = pushed(b"".join(message(1, BasicProperties(headers=headers), b"")), 0)
    assert found is not None
    assert found.delivery.glimpse("cloudEvents_id") in (None, headers.get("cloudEvents_id"))


@given(st.binary(max_size=60))
def test_whatever_stands_for_properties_a_glimpse_breaks_nothing(told: bytes) -> None:
    assert Delivery(1, told, b"").glimpse("cloudEvents_id") is None


@given(properties, bodies, st.data())
def test_of_a_message_that_is_not_whole_nothing_is_taken(
    told: BasicProperties, body: bytes, data: st.DataObject
) -> None:
    said = b"".join(message(7, told, body))
    assert pushed(said[: data.draw(st.integers(0, len(said) - 1))], 0) is None


@pytest.mark.parametrize("number", [0, 1, 2], ids=["method", "header", "body"])
def test_a_frame_that_does_not_end_is_left_to_pika(number: int) -> None:
    frames = message(1, BasicProperties(), b"body")
    frames[number] = frames[number][:-1] + b"\0"
    assert pushed(b"".join(frames), 0) is None


def test_a_message_between_whose_frames_another_channel_speaks_is_left_to_pika() -> None:
    method, header, body = message(1, BasicProperties(), b"body")
    beat = frame.Body(THEIRS, b"of another").marshal()
    assert pushed(method + header + beat + body, 0) is None
    assert pushed(method + beat + header + body, 0) is None


def test_properties_that_pika_cannot_read_cost_nothing_but_themselves() -> None:
    entry = b"\x04when" + b"T" + struct.pack(">Q", 1_700_000_000_000)
    told = struct.pack(">HI", 1 << 13, len(entry)) + entry
    assert Delivery(1, told, b"body").read() == Told()


class Recorder(Wire):
    """A connection that is told what the server says, and keeps it."""

    def __init__(self) -> None:
        self._frame_buffer = b""
        self.bytes_received = 0
        self._ears = {}
        self.tags: list[int] = []
        self.others: list[Any] = []
        self.hear(OURS, CONSUMER, lambda delivery: self.tags.append(delivery.tag))

    def _process_frame(self, frame_value: Any) -> None:
        method = getattr(frame_value, "method", None)
        if isinstance(method, spec.Basic.Deliver) and frame_value.channel_number == OURS:
            self.tags.append(method.delivery_tag)
        elif frame_value.channel_number != OURS:
            self.others.append(frame_value)


@given(
    st.lists(st.tuples(bodies, st.sampled_from(["", "beat", "other channel"])), max_size=6),
    st.lists(st.integers(1, 200), min_size=1, max_size=8),
)
def test_however_it_is_cut_up_each_message_is_told_of_once_and_in_its_order(
    said: list[tuple[bytes, str]], cuts: list[int]
) -> None:
    told = BasicProperties(headers={"cloudEvents_id": "x"}, delivery_mode=2)
    stream, others = b"", 0
    for tag, (body, between) in enumerate(said, 1):
        stream += b"".join(message(tag, told, body))
        if between == "beat":
            stream += frame.Heartbeat().marshal()
            others += 1
        elif between:
            frames = message(tag, told, b"body", channel=THEIRS)
            stream += b"".join(frames)
            others += len(frames)
    wire, at, turn = Recorder(), 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)] * (1 if turn % 2 else 40)
        wire._on_data_available(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert wire.tags == [*range(1, len(said) + 1)]
    assert len(wire.others) == others
    assert wire.bytes_received == len(stream)
    assert wire._frame_buffer == b""


def test_who_hears_no_more_leaves_messages_to_pika() -> None:
    wire = Recorder()
    heard: list[int] = []
    wire.hear(OURS, CONSUMER, lambda delivery: heard.append(delivery.tag))
    wire._on_data_available(b"".join(message(1, BasicProperties(), b"")))
    wire._on_data_available(b"".join(message(2, BasicProperties(), b"", consumer="another")))
    wire.hear_no_more(OURS)
    wire._on_data_available(b"".join(message(3, BasicProperties(), b"")))
    assert (heard, wire.tags) == ([1], [2, 3])
