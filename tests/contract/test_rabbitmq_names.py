"""Tests without a server: names of queues, URLs, and messages that headers cannot hold."""

from __future__ import annotations

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pika")

from umbel.backends import Lane
from umbel.backends.rabbitmq.address import RabbitAddress
from umbel.backends.rabbitmq.messages import MAX_BODY_BYTES, Delivery, to_headers, to_message
from umbel.backends.rabbitmq.queue_names import queue_name
from umbel.errors import BadMessage, ConfigurationError, MessageTooLarge
from umbel.messages import JSON, Body, Envelope, fresh_id
from umbel.messages.wire import MEDIA_TYPE, read_message

KINDS = st.sampled_from(["", "io", "cpu"])
PLACES = st.tuples(st.text(min_size=1), st.text(min_size=1), KINDS)


@pytest.mark.parametrize(
    ("namespace", "lane", "name"),
    [
        ("umbel", Lane("default", "io"), "umbel.default.io"),
        ("umbel", Lane("default", ""), "umbel.default.any"),
        ("umbel", Lane("mail.urgent", "cpu"), "umbel.mail.urgent.cpu"),
        ("my.app", Lane("a b", "io"), "my%2Eapp.a%20b.io"),
        ("amq", Lane("q", "io"), "%61mq.q.io"),
    ],
)
def test_ordinary_names_can_be_read(namespace: str, lane: Lane, name: str) -> None:
    assert queue_name(namespace, lane) == name


@given(PLACES, PLACES)
def test_two_lanes_never_share_a_queue(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    first, second = queue_name(one[0], Lane(*one[1:])), queue_name(other[0], Lane(*other[1:]))
    assert (first == second) == (one == other)
    assert len(first.encode()) <= 255


def test_long_names_are_distinguished() -> None:
    names = {queue_name("n", Lane("é" * 254 + end, kind)) for end in "ab" for kind in ("", "io")}
    assert len(names) == 4
    assert all(len(name) <= 255 for name in names)


def test_a_url_says_it_all() -> None:
    address = RabbitAddress(
        "amqp://me:p%40ss@host.example:5673/my%2Fhost?heartbeat=7&connect_timeout=1.5"
    )
    parameters = address.parameters("test")
    assert (parameters.host, parameters.port) == ("host.example", 5673)
    assert (parameters.virtual_host, parameters.heartbeat) == ("my/host", 7)
    assert (parameters.credentials.username, parameters.credentials.password) == ("me", "p@ss")
    assert address.connect_timeout == 1.5
    assert address.label == "RabbitMQ my/host at host.example:5673"


def test_what_a_url_leaves_out_is_rabbitmqs_default() -> None:
    parameters = RabbitAddress("amqps://host").parameters("test")
    assert (parameters.port, parameters.virtual_host) == (5671, "/")
    assert parameters.credentials.username == "guest"
    assert parameters.ssl_options.server_hostname == "host"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://host", "amqp://"),
        ("amqp://", "names no host"),
        ("amqp://[::1", "cannot be read"),
        ("amqp://host:99999", "port"),
        ("amqp://host:0", "port"),
        ("amqp://host/a/b", "%2F"),
        ("amqp://host?heartbeat=soon", "heartbeat='soon'"),
        ("amqp://host?heartbeat=-1", "heartbeat='-1'"),
        ("amqp://host?connect_timeout=0", "connect_timeout='0'"),
        ("amqp://host?connect_timeout=nan", "connect_timeout='nan'"),
        ("amqp://host?hartbeat=3", "hartbeat: unknown"),
        ("amqp://host?verify=false", "amqps://"),
        ("amqps://host?verify=no", "verify='no'"),
        ("amqps://host?cafile=/nowhere.pem", "cafile='/nowhere.pem'"),
        ("amqps://host?certfile=/nowhere.pem", "certfile='/nowhere.pem'"),
        ("amqps://host?keyfile=/nowhere.pem", "keyfile"),
    ],
)
def test_the_wrong_part_of_a_url_is_named(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RabbitAddress(url)
    assert says in str(caught.value)


def envelope(**changes: object) -> Envelope:
    fields: dict[str, object] = {"id": fresh_id(), "subject": "t", "body": Body(JSON, b"{}")}
    return Envelope(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"headers": {"x" * 250: "a name that is too long with its prefix"}},
        {"headers": {"note": "é" * 60_000}},
        {"body": Body("application/" + "x" * 300, b"data")},
    ],
)
def test_what_headers_cannot_hold_travels_in_the_body(changes: dict[str, object]) -> None:
    sent = envelope(**changes)
    message = to_message(sent, "q")
    assert (message.headers, message.content_type) == ({}, MEDIA_TYPE)
    assert read_message({}, message.content_type, message.body) == sent


def test_both_prefixes_are_read_and_other_headers_are_not() -> None:
    headers = {"cloudEvents_id": "1", "cloudEvents:type": "t", "x-death": [], b"\xff": 1}
    told = pika.BasicProperties(headers=headers)
    assert to_headers(Delivery(1, told, b"")) == ({"id": "1", "type": "t"}, "")


def test_a_message_that_is_too_large_names_both_sizes() -> None:
    with pytest.raises(MessageTooLarge, match=r"16,777,217 bytes.*16,777,216"):
        to_message(envelope(body=Body(JSON, b"1" * (MAX_BODY_BYTES + 1))), "q")


def test_text_that_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(BadMessage, match="attributes"):
        to_message(envelope(subject="\ud800"), "q")
