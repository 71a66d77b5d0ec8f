"""The calls to JetStream that a lane's stream needs."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from umbel.backends.nats.connections import Connection
from umbel.backends.nats.errors import NAME_TAKEN, NO_CONSUMER, NO_STREAM, SUBJECT_TAKEN, Refused

_API = "$JS.API"
_CONSUMER = "umbel"
_PATIENCE = 3.0
_DUPLICATES = 30.0
"""Seconds for which the server remembers ids: longer than any one call to send. The default of
two minutes would keep the ids of millions of messages in memory."""
_UNACKNOWLEDGED = 100_000
_WAITING = 4096
"""Receivers that may wait at a stream at once."""


class Asked(Protocol):
    """What is asked here: a connection, or a ``Line``."""

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes: ...


class Stream(msgspec.Struct, frozen=True):
    """A stream and the one subject it keeps."""

    name: str
    subject: str

    @property
    def next(self) -> str:
        """Where to ask for messages."""
        return f"{_API}.CONSUMER.MSG.NEXT.{self.name}.{_CONSUMER}"


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Reply(msgspec.Struct):
    error: _Error | None = None


class Stored(msgspec.Struct):
    """What JetStream answers to a message: where it is kept, or why it is not."""

    stream: str = ""
    error: _Error | None = None


_stored = msgspec.json.Decoder(Stored)
_reply = msgspec.json.Decoder(_Reply)


def check_stored(data: bytes) -> None:
    """Whether this is the answer of a stream that has kept the message.

    Raises:
        Refused: it is not.
    """
    try:
        found = _stored.decode(data)
    except msgspec.MsgspecError:  # somebody else listens on the subject, and answered first
        raise Refused(0, "the answer is not JetStream's; choose another namespace") from None
    if found.error is not None:
        raise Refused(found.error.err_code, found.error.description)


async def missing_part(connection: Asked, stream: Stream) -> Literal["stream", "consumer", None]:
    """What is missing on the server. Raises Refused, and a lost connection's error."""
    try:
        await _call(connection, f"CONSUMER.INFO.{stream.name}.{_CONSUMER}")
    except Refused as error:
        if error.code == NO_STREAM:
            return "stream"
        if error.code == NO_CONSUMER:
            return "consumer"
        raise
    return None


async def make_stream(
    connection: Asked, stream: Stream, *, replicas: int, description: str
) -> bool:
    """Make a stream; False when it was there, as somebody else made it.

    The description has to be the maker's own: the server takes a second request of the same words
    for the first one's repetition, and tells other makers apart by theirs.
    """
    wanted = {
        "name": stream.name,
        "subjects": [stream.subject],
        "description": description,
        "retention": "workqueue",
        "storage": "file",
        "discard": "old",
        "num_replicas": replicas,
        "duplicate_window": int(_DUPLICATES * 1e9),
    }
    try:
        await _call(connection, f"STREAM.CREATE.{stream.name}", wanted)
    except Refused as error:
        if error.code == NAME_TAKEN:
            return False
        if error.code == SUBJECT_TAKEN and await _is_there(connection, stream):
            return False  # somebody made it this very moment: the server sees its subject first
        raise
    return True


async def _is_there(connection: Asked, stream: Stream) -> bool:
    try:
        await _call(connection, f"STREAM.INFO.{stream.name}")
    except Refused as error:
        if error.code == NO_STREAM:
            return False
        raise
    return True


async def make_consumer(connection: Asked, stream: Stream, *, ack_wait: float) -> None:
    """Make the one consumer that all receivers share. It may be there already."""
    config = {
        "durable_name": _CONSUMER,
        "deliver_policy": "all",
        "replay_policy": "instant",
        "ack_policy": "explicit",
        "ack_wait": int(ack_wait * 1e9),
        "max_deliver": -1,
        "max_ack_pending": _UNACKNOWLEDGED,
        "max_waiting": _WAITING,
    }
    wanted = {"stream_name": stream.name, "config": config}
    await _call(connection, f"CONSUMER.DURABLE.CREATE.{stream.name}.{_CONSUMER}", wanted)


async def purge(connection: Connection, stream: Stream) -> None:
    """Drop what waits in a stream, if there is one."""
    try:
        await _call(connection, f"STREAM.PURGE.{stream.name}")
    except Refused as error:
        if error.code != NO_STREAM:
            raise


async def ping(connection: Connection) -> None:
    """Whether JetStream answers, for this account. Raises Refused."""
    await _call(connection, "INFO")


async def _call(connection: Asked, what: str, body: Any = None) -> None:
    data = b"" if body is None else msgspec.json.encode(body)
    answer = await connection.request(f"{_API}.{what}", data, _PATIENCE)
    error = _reply.decode(answer).error
    if error is not None:
        raise Refused(error.err_code, error.description)
