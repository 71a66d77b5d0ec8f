"""Addresses, names and messages of the AMQP 1.0 transport, as values."""

from __future__ import annotations

import re
import uuid
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

proton = pytest.importorskip("proton")

from umbel.backends import Lane  # noqa: E402
from umbel.backends.amqp import message_sections as sections  # noqa: E402
from umbel.backends.amqp.address import Home  # noqa: E402
from umbel.backends.amqp.cloudevents import to_arrival, to_message  # noqa: E402
from umbel.backends.amqp.dialects import Dialect, dialect_of, reply_address  # noqa: E402
from umbel.backends.amqp.message_bytes import Post, decode, encode  # noqa: E402
from umbel.backends.amqp.queue_names import queue_name  # noqa: E402
from umbel.errors import BadMessage, ConfigurationError  # noqa: E402
from umbel.messages import JSON, Body, BodyCodec, Envelope, fresh_id  # noqa: E402
from umbel.messages.wire import MEDIA_TYPE, attributes, read_message, write  # noqa: E402

IO = Lane("default", "io")
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300)
"""Without NUL: Proton's own texts end there."""
SHORT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
SYMBOL = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=40)
VALUES = st.one_of(
    TEXT,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.none(),
)
POSTS = st.builds(
    Post,
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


@given(POSTS)
def test_what_is_written_is_what_proton_reads(post: Post) -> None:
    found = by_proton(encode(post))
    assert found.durable
    assert bytes(found.body) == post.body
    assert (found.subject or "", found.reply_to or "") == (post.subject, post.reply_to)
    assert (found.correlation_id or "") == post.correlation
    assert (found.content_type or "") in (post.content_type, "None")
    assert (found.properties or {}) == {f"cloudEvents:{n}": v for n, v in post.attributes.items()}


@pytest.mark.parametrize("size", [*range(215, 260), 65_535, 65_536])
def test_no_size_is_written_wrongly(size: int) -> None:
    text = "x" * size
    post = Post(body=text.encode(), subject=text, attributes={"name": text, text: "value"})
    found = by_proton(encode(post))
    assert (bytes(found.body), found.subject) == (post.body, text)
    assert found.properties == {"cloudEvents:name": text, f"cloudEvents:{text}": "value"}
    assert decode(encode(post)) == post
    assert decode(encode(Post(attributes={"n": text[20:]}))).attributes == {"n": text[20:]}


@given(POSTS)
def test_what_is_written_is_read_again(post: Post) -> None:
    assert decode(encode(post)) == post


@given(POSTS)
def test_what_proton_writes_is_read(post: Post) -> None:
    message = proton.Message(post.body, durable=True, inferred=True)
    message.subject, message.reply_to = post.subject or None, post.reply_to or None
    message.correlation_id = post.correlation or None
    if post.content_type:
        message.content_type = post.content_type
    message.properties = {f"cloudEvents_{name}": v for name, v in post.attributes.items()}
    assert decode(message.encode()) == post


@given(st.binary(max_size=200))
def test_whatever_comes_is_a_message_or_none(data: bytes) -> None:
    with suppress(BadMessage):
        assert isinstance(decode(data), Post)


@given(POSTS, st.data())
def test_a_message_that_was_cut_is_none_or_what_proton_makes_of_it(
    post: Post, draw: st.DataObject
) -> None:
    whole = encode(post)
    part = whole[: draw.draw(st.integers(0, len(whole) - 1))]
    try:
        found = sections.read(part)
    except sections.Unusual:
        return
    assert found.body == bytes(by_proton(part).body)


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


def test_a_content_type_that_is_no_symbol_travels_in_the_body() -> None:
    sent = envelope(body=Body("application/ä", b"1"))
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
    assert dialect_of("RabbitMQ", "3.10.8", None) == Dialect("/amq/queue/", "/queue/", early=True)
    assert dialect_of("RabbitMQ", "4.1.0", None) == Dialect("/queues/", "/queue/")
    assert dialect_of("apache-activemq-artemis", "2.31", None) == Dialect("")
    assert dialect_of("", "", None) == Dialect("")
    assert dialect_of("RabbitMQ", "3.10.8", "queue://") == Dialect("queue://")


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
    assert reply_address(dialect_of("RabbitMQ", "3.10.8", None), address) == early
    assert reply_address(Dialect(""), address) == other


def test_a_url_says_where_and_how() -> None:
    home = Home("amqp1://me:p%40ss@host?vhost=shop&connect_timeout=2&prefix=queue://")
    assert (home.host, home.port, home.user, home.password) == ("host", 5672, "me", "p@ss")
    assert (home.virtual, home.connect_timeout, home.prefix) == ("vhost:shop", 2.0, "queue://")
    assert "p@ss" not in home.address
    assert Home("amqp1s://host").port == 5671


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("amqp1://", "names no host"),
        ("amqp1://host:port", "port: give a number"),
        ("amqp1://host?cafile=/x", "cafile: is for TLS"),
        ("amqp1://host?queue=x", "queue: unknown in this URL"),
        ("amqp1://host?connect_timeout=soon", "connect_timeout='soon'"),
    ],
)
def test_a_wrong_url_is_named(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Home(url)
