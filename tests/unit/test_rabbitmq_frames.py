"""Frames that we write ourselves are pika's to the byte, and what we do not read is left to it."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import BasicProperties, exceptions, frame, spec

from umbel.backends.rabbitmq.frames import Confirm, Message, confirms, written

CHANNEL, LARGEST = 3, 4096

short = st.text(st.characters(codec="utf-8"), max_size=60)
messages = st.builds(
    Message,
    queue=short,
    id=short,
    headers=st.dictionaries(short, st.text(st.characters(codec="utf-8")), max_size=5),
    content_type=short,
    body=st.binary(max_size=50)
    | st.sampled_from([LARGEST - 9, LARGEST - 8, LARGEST - 7, 3 * LARGEST]).map(bytes),
    correlation=st.none() | short,
)


def as_pika_writes(message: Message) -> bytes:
    told = BasicProperties(
        content_type=message.content_type,
        headers=message.headers,
        delivery_mode=2,
        message_id=message.id,
        correlation_id=message.correlation,
    )
    publish = spec.Basic.Publish(exchange="", routing_key=message.queue, mandatory=True)
    room = LARGEST - spec.FRAME_HEADER_SIZE - spec.FRAME_END_SIZE
    body = message.body
    frames = [
        frame.Method(CHANNEL, publish),
        frame.Header(CHANNEL, len(body), told),
        *(frame.Body(CHANNEL, body[at : at + room]) for at in range(0, len(body), room)),
    ]
    return b"".join(one.marshal() for one in frames)


@given(messages)
def test_a_message_is_written_as_pika_writes_it(message: Message) -> None:
    assert written(message, CHANNEL, LARGEST) == as_pika_writes(message)


@pytest.mark.parametrize(
    "wrong",
    [
        Message("q" * 256, "id", {}, "text/plain", b""),
        Message("q", "é" * 128, {}, "text/plain", b""),
        Message("q", "id", {"n" * 256: ""}, "text/plain", b""),
        Message("q", "id", {}, "text/plain", b"", correlation="c" * 256),
    ],
    ids=["queue", "id", "header", "correlation"],
)
def test_a_name_that_is_too_long_is_refused_before_anything_is_written(wrong: Message) -> None:
    with pytest.raises(exceptions.ShortStringTooLong):
        written(wrong, CHANNEL, LARGEST)


ack = st.builds(spec.Basic.Ack, st.integers(1, 2**63), st.booleans())
other = st.one_of(
    ack.map(lambda one: frame.Method(CHANNEL + 1, one)),
    st.builds(spec.Basic.Nack, st.integers(1, 9)).map(lambda one: frame.Method(CHANNEL, one)),
    st.just(frame.Heartbeat()),
    st.just(frame.Body(CHANNEL, b"twenty-one bytes of it")),
)


@given(st.lists(ack, max_size=4), st.lists(other, max_size=2), st.lists(ack, max_size=2), st.data())
def test_confirms_are_read_up_to_whatever_else_is_said(
    first: list[spec.Basic.Ack],
    then: list[frame.CommandContext],
    last: list[spec.Basic.Ack],
    data: st.DataObject,
) -> None:
    """Cut off anywhere: whole confirms are taken, every other byte is left in its order."""
    ours = [frame.Method(CHANNEL, one).marshal() for one in first]
    later = [frame.Method(CHANNEL, one) for one in last]
    rest = [one.marshal() for one in [*then, *later]]
    said = b"".join([*ours, *rest])
    heard = said[: data.draw(st.integers(0, len(said)))]

    found, left = confirms(heard, CHANNEL)

    leading = first if then else [*first, *last]
    sizes = accumulate(len(one) for one in (ours if then else [*ours, *rest]))
    whole = sum(1 for size in sizes if size <= len(heard))
    assert found == [Confirm(one.delivery_tag, one.multiple) for one in leading[:whole]]
    assert left == heard[sum(map(len, [*ours, *rest][:whole])) :]


def test_a_frame_without_its_end_is_left_to_pika() -> None:
    broken = frame.Method(CHANNEL, spec.Basic.Ack(1)).marshal()[:-1] + b"\0"
    assert confirms(broken, CHANNEL) == ([], broken)
