"""Addresses, names and messages of the AMQP 1.0 transport, as values."""

from __future__ import annotations

import re
import struct
import uuid
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

proton = pytest.importorskip("proton")

from umbel.backends import Lane  # noqa: E402
from umbel.backends.amqp.address import AmqpAddress  # noqa: E402
from umbel.backends.amqp.cloudevents import to_arrival, to_message  # noqa: E402
from umbel.backends.amqp.dialects import Dialect, detect_dialect, reply_address  # noqa: E402
from umbel.backends.amqp.message_codec import AmqpMessage, decode, encode  # noqa: E402
from umbel.backends.amqp.queue_names import queue_name  # noqa: E402
from umbel.errors import BadMessage, ConfigurationError  # noqa: E402
from umbel.messages import JSON, Body, BodyCodec, Envelope, fresh_id  # noqa: E402
from umbel.messages.wire import MEDIA_TYPE, attributes, read_message, write  # noqa: E402

IO = Lane("default", "io")
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300)
"""Texts without NUL, because Proton ends texts there."""
SHORT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
SYMBOL = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=40)
VALUES = st.one_of(
    TEXT,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.none(),
)
MESSAGES = st.builds(
    AmqpMessage,
    body=st.binary(max_size=600),
    subject=TEXT,
    content_type=SYMBOL.filter(lambda text: text != "None"),
    reply_to=TEXT,
    correlation=TEXT,
    attributes=st.dictionaries(SHORT, VALUES, max_size=40),
)


def by_proton(data: bytes) -> Any:
    message = proton.Message()
    message.decode(data)
    return message


@given(MESSAGES)
def test_a_message_is_durable_and_its_body_is_a_data_section(message: AmqpMessage) -> None:
    found = by_proton(encode(message))
    assert (found.durable, found.inferred) == (True, True)
    assert bytes(found.body) == message.body


@given(MESSAGES)
def test_an_encoded_message_decodes_to_the_same_message(message: AmqpMessage) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize("size", [255, 256, 65_535, 65_536, 3_000_000])
def test_long_texts_and_bodies_survive(size: int) -> None:
    text = "x" * size
    message = AmqpMessage(
        body=text.encode(), subject=text, attributes={"name": text, text: "value"}
    )
    assert decode(encode(message)) == message


@given(MESSAGES)
def test_the_other_prefix_of_attributes_is_read_too(message: AmqpMessage) -> None:
    sent = by_proton(encode(message))
    sent.properties = {f"cloudEvents_{name}": v for name, v in message.attributes.items()}
    assert decode(sent.encode()) == message


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    with suppress(BadMessage):
        assert isinstance(decode(data), AmqpMessage)


@given(MESSAGES, st.data())
def test_a_truncated_message_is_a_message_or_refused(
    message: AmqpMessage, draw: st.DataObject
) -> None:
    whole = encode(message)
    with suppress(BadMessage):
        part = whole[: draw.draw(st.integers(0, len(whole) - 1))]
        assert isinstance(decode(part), AmqpMessage)


@pytest.mark.parametrize("where", ["body", "properties", "annotations"])
def test_a_message_that_is_nested_too_deeply_is_refused(where: str) -> None:
    # Encoded by hand: Proton's classes cannot encode it, either.
    value = b"\x45"
    for _ in range(5_000):
        value = b"\xd0" + struct.pack(">II", len(value) + 4, 1) + value
    section = {"body": 0x77, "properties": 0x74, "annotations": 0x72}[where]
    if where != "body":
        items = (b"\xa3\x01a" if where == "annotations" else b"\xa1\x01a") + value
        value = b"\xd1" + struct.pack(">II", len(items) + 4, 2) + items
    data = bytes((0, 0x53, section)) + value
    with pytest.raises(BadMessage, match="nested too deeply"):
        decode(data)
    assert to_arrival(IO, 1, data).data == data


def test_other_forms_of_a_body_are_read_too() -> None:
    for body, expected in (("text", b"text"), ({"args": [1]}, b'{"args":[1]}'), (None, b"")):
        assert decode(proton.Message(body).encode()).body == expected


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_body_with_a_number_that_json_does_not_have_is_refused_and_not_changed(
    number: float,
) -> None:
    found = decode(proton.Message({"args": [number]}).encode())
    with pytest.raises(BadMessage, match="data: not valid application/json"):
        BodyCodec().decode(Body(JSON, found.body))


def test_other_kinds_of_value_become_what_cloud_events_say() -> None:
    message = proton.Message(b"", inferred=True, correlation_id=uuid.UUID(int=7))
    message.properties = {
        "cloudEvents:time": proton.timestamp(1_700_000_000_250),
        "cloudEvents:priority": proton.uint(3),
        "cloudEvents:id": uuid.UUID(int=5),
        "other": "not ours",
    }
    found = decode(message.encode())
    assert found.correlation == str(uuid.UUID(int=7))
    assert found.attributes == {
        "time": "2023-11-14T22:13:20.250000+00:00",
        "priority": 3,
        "id": str(uuid.UUID(int=5)),
    }


def envelope(**changes: Any) -> Envelope:
    fields = {"id": fresh_id(), "subject": "tests.add", "body": Body(JSON, b"{}")}
    return Envelope(**(fields | changes))


def test_an_envelope_travels_in_binary_mode_and_its_id_is_the_messages() -> None:
    sent = envelope(headers={"tenant": "ä"})
    found = by_proton(to_message(sent))
    assert found.id == sent.id
    assert found.properties == {f"cloudEvents:{n}": v for n, v in attributes(sent).items()}


@pytest.mark.parametrize("content_type", ["application/ä", "text/a\nb", "x" * 256])
def test_a_content_type_that_is_no_symbol_travels_in_the_body(content_type: str) -> None:
    sent = envelope(body=Body(content_type, b"1"))
    arrival = to_arrival(IO, 1, to_message(sent))
    assert arrival.read().content_type == MEDIA_TYPE
    assert read_message(*arrival.read(), arrival.data) == sent


def test_an_envelope_with_very_many_headers_travels_in_the_body() -> None:
    sent = envelope(headers={f"h{number}": "x" for number in range(1_001)})
    arrival = to_arrival(IO, 1, to_message(sent))
    assert arrival.read().content_type == MEDIA_TYPE
    assert read_message(*arrival.read(), arrival.data) == sent


def test_text_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(BadMessage, match="not text that can be sent"):
        to_message(envelope(subject="\ud800"))


@pytest.mark.parametrize("structured", [False, True])
def test_a_senders_own_properties_say_who_asks(structured: bool) -> None:
    sent = envelope()
    body, kind = (write(sent), MEDIA_TYPE) if structured else (sent.body.data, JSON)
    message = proton.Message(body, inferred=True, content_type=kind)
    message.reply_to, message.correlation_id = "/queue/answers", proton.ulong(7)
    if not structured:
        message.properties = {f"cloudEvents:{n}": v for n, v in attributes(sent).items()}
    arrival = to_arrival(IO, 1, message.encode())
    found = read_message(*arrival.read(), arrival.data)
    assert found.headers == {"replyto": "/queue/answers", "correlationid": "7"}


def test_attributes_that_say_who_asks_are_not_overruled() -> None:
    sent = envelope(headers={"replyto": "there", "correlationid": "q"})
    message = by_proton(to_message(sent))
    message.reply_to, message.correlation_id = "/queue/answers", "other"
    arrival = to_arrival(IO, 1, message.encode())
    found = read_message(*arrival.read(), arrival.data)
    assert found.headers == sent.headers


# --- names ---------------------------------------------------------------------------------------

NAME = st.text("aB1_.-~ /%äZ7E", max_size=8) | st.text(max_size=300)


@given(NAME, NAME, NAME, NAME, st.sampled_from(["", "io", "cpu"]))
@example("u", "u", "a b", "a__20b", "io")
@example("u", "u", "_ ", "___20", "io")
@example("a.b", "a", "c", "b.c", "")
def test_two_lanes_never_share_a_name(a: str, b: str, one: str, other: str, kind: str) -> None:
    first, second = queue_name(a, Lane(one, kind)), queue_name(b, Lane(other, kind))
    assert (first == second) == ((a, one) == (b, other))
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,255}", first)


@pytest.mark.parametrize(
    ("namespace", "lane", "expected"),
    [
        ("umbel", Lane("default", "io"), "umbel.default.io"),
        ("umbel", Lane("default", ""), "umbel.default.any"),
        ("my.app", Lane("my_mail.fast", "cpu"), "my__2Eapp.my_mail.fast.cpu"),
        ("umbel", Lane("a b", "io"), "umbel.a__20b.io"),
        ("amq", Lane("x", "io"), "__61mq.x.io"),
    ],
)
def test_names_are_readable(namespace: str, lane: Lane, expected: str) -> None:
    assert queue_name(namespace, lane) == expected


# --- addresses -----------------------------------------------------------------------------------


def test_an_address_is_what_the_broker_understands() -> None:
    assert detect_dialect("RabbitMQ", "3.10.8", None) == Dialect(
        "/amq/queue/", "/queue/", is_rabbitmq_3=True
    )
    assert detect_dialect("RabbitMQ", "4.1.0", None) == Dialect("/queues/", "/queue/")
    assert detect_dialect("apache-activemq-artemis", "2.31", None) == Dialect("")
    assert detect_dialect("", "", None) == Dialect("")
    assert detect_dialect("RabbitMQ", "3.10.8", "queue://") == Dialect("queue://")


@pytest.mark.parametrize(
    ("address", "early", "other"),
    [
        ("/queue/a", "/amq/queue/a", "/queue/a"),
        ("a.b", "/amq/queue/a.b", "a.b"),
        ("/exchange/x/key", "/exchange/x/key", "/exchange/x/key"),
        ("a\nb", None, None),
        ("x" * 256, None, None),
        ("é", None, "é"),
    ],
)
def test_an_answer_makes_no_queue(address: str, early: str | None, other: str | None) -> None:
    assert reply_address(detect_dialect("RabbitMQ", "3.10.8", None), address) == early
    assert reply_address(Dialect(""), address) == other


def test_a_url_says_where_and_how() -> None:
    address = AmqpAddress("amqp1://me:p%40ss@host?vhost=shop&connect_timeout=2&prefix=queue://")
    assert (address.host, address.port, address.user, address.password) == (
        "host",
        5672,
        "me",
        "p@ss",
    )
    assert (address.virtual_host, address.connect_timeout, address.prefix) == (
        "vhost:shop",
        2.0,
        "queue://",
    )
    assert "p@ss" not in address.label
    assert AmqpAddress("amqp1s://host").port == 5671


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("amqp1://", "names no host"),
        ("amqp1://host:port", "port: give a number"),
        ("amqp1://host?cafile=/x", "cafile: needs TLS"),
        ("amqp1://host?queue=x", "queue: unknown in this URL"),
        ("amqp1://host?connect_timeout=soon", "connect_timeout='soon'"),
    ],
)
def test_a_wrong_url_is_named(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        AmqpAddress(url)
