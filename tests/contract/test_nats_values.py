"""Addresses, names and headers of the NATS transport, as values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("nats")

from umbel.backends import Lane
from umbel.backends.nats.address import NatsAddress
from umbel.backends.nats.headers import find_id, read, size_of, write
from umbel.backends.nats.stream_names import stream_of
from umbel.backends.nats.transport import NatsTransport
from umbel.errors import ConfigurationError
from umbel.messages import JSON, Body, Envelope, fresh_id
from umbel.messages.wire import MEDIA_TYPE, attributes

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def envelope(**changes: object) -> Envelope:
    fields = {"id": fresh_id(), "subject": "tests.add", "body": Body(JSON, b"{}")}
    return Envelope(**(fields | changes))


def test_an_address_has_servers_and_who_we_are() -> None:
    address = NatsAddress("nats://me:p%40ss@one:4223,two,[::1]:5000/?replicas=3")
    assert address.servers == ["nats://one:4223", "nats://two:4222", "nats://[::1]:5000"]
    assert address.login == {"user": "me", "password": "p@ss"}
    assert (address.replicas, address.requires_tls, address.new_ssl_context()) == (3, False, None)
    assert "p@ss" not in address.label


def test_a_user_without_a_password_is_a_token() -> None:
    address = NatsAddress("tls://s3cret@host")
    assert (address.requires_tls, address.login) == (True, {"token": "s3cret"})


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://host", r"starts with redis://; write nats://"),
        ("me:secret@host:4222", r"no scheme; write nats://"),
        ("nats://", r"host is ''"),
        ("nats://host:port", r"host is 'host:port'"),
        ("nats://one,,two", r"host is ''"),
        ("nats://host/jobs", r"no path"),
        ("nats://host?replicas=0", r"replicas='0': give a number from 1 to 5"),
        ("nats://host?replicas=many", r"replicas='many'"),
        ("nats://host?replica=1", r"replica: unknown in a NATS URL; use replicas"),
        ("tls://host?ca=/nowhere/ca.pem", r"ca='/nowhere/ca.pem': no such file"),
        ("tls://host?cert=/nowhere/cert.pem", r"cert and key: give both"),
        ("nats://host?creds=/nowhere/me.creds", r"creds='/nowhere/me.creds': no such file"),
    ],
)
def test_a_wrong_address_is_reported_with_the_correct_form(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        NatsAddress(url)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigurationError, match="PEM"):
        NatsAddress(f"tls://host?ca={tmp_path}/ca.pem")


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e9, float("nan")])
def test_a_wrong_ack_wait_is_reported(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="ack_wait"):
        NatsTransport(
            NatsAddress("nats://host"), namespace="n", on_lane_missing=str, ack_wait=seconds
        )


def test_ordinary_names_are_readable() -> None:
    io, unknown = stream_of("umbel", Lane("default", "io")), stream_of("umbel", Lane("mail-2", ""))
    assert (io.name, io.subject) == ("umbel+default+io", "umbel.default.io")
    assert (unknown.name, unknown.subject) == ("umbel+mail-2", "umbel.mail-2")


@given(st.text(max_size=255), st.text(max_size=255), st.sampled_from(["", "io", "cpu"]))
def test_any_name_is_safe(namespace: str, queue: str, kind: str) -> None:
    stream = stream_of(namespace, Lane(queue, kind))
    assert re.fullmatch(r"[\w=+~-]{1,200}", stream.name, re.ASCII)
    assert stream.subject == stream.name.replace("+", ".")


@given(st.lists(st.text(".*>+=~%/ aA_é", max_size=6), min_size=4, max_size=4))
def test_two_lanes_never_share_a_name(names: list[str]) -> None:
    first, second = (names[0], Lane(names[1], "")), (names[2], Lane(names[3], "io"))
    assert stream_of(*first) != stream_of(*second)
    if first != (names[2], Lane(names[3], "")):
        assert stream_of(*first) != stream_of(names[2], Lane(names[3], ""))


def test_long_names_stay_apart() -> None:
    names = {stream_of("n", Lane("x" * length, "")).name for length in range(100, 255)}
    assert len(names) == 155


@given(TEXT, TEXT, st.dictionaries(NAMES, TEXT, max_size=3))
def test_any_text_survives_headers(subject: str, kind: str, headers: dict[str, str]) -> None:
    sent = envelope(subject=subject, body=Body(f"text/{kind}", b"{}"), headers=headers)
    written = write(sent, "once")
    block = "".join(f"{name}: {value}\r\n" for name, value in written.items())
    assert block.isascii()
    assert block.count("\r\n") == len(written)
    assert size_of(written) == len(f"NATS/1.0\r\n{block}\r\n")
    found, content_type = read(written, b"{}")
    wanted = attributes(sent)
    assert found == wanted
    assert content_type == sent.body.content_type
    assert find_id(written) == found["id"]


@pytest.mark.parametrize(
    "headers", [None, {}, {"ce-id": "a%20b"}, {"ce-id": "a b"}, {"ce-id": ""}, {"Ce-Id": "1"}]
)
def test_an_id_in_a_foreign_form_is_not_found_by_the_fast_path(
    headers: dict[str, str] | None,
) -> None:
    assert find_id(headers) is None


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20)), st.binary(max_size=20))
def test_any_headers_are_read(headers: dict[str, str], data: bytes) -> None:
    found, content_type = read(headers, data)
    assert isinstance(found, dict)
    assert isinstance(content_type, str)


@pytest.mark.parametrize(
    ("headers", "data", "content_type"),
    [
        (None, b'{"specversion":"1.0"}', MEDIA_TYPE),
        (None, b"anything", ""),
        ({"Content-Type": "application/cloudevents; charset=utf-8"}, b"", MEDIA_TYPE),
        ({"content-type": "application/cloudevents+json"}, b"", MEDIA_TYPE),
        ({"Content-Type": "text/plain; a=b"}, b"{", "text/plain; a=b"),
        ({"ce-datacontenttype": "text/plain"}, b"", "text/plain"),
    ],
)
def test_how_an_event_is_distinguished_from_other_messages(
    headers: dict[str, str] | None, data: bytes, content_type: str
) -> None:
    assert read(headers, data) == ({}, content_type)
