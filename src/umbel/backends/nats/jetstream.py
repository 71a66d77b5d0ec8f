"""The requests to the JetStream API."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from umbel.backends.nats.connections import Connection
from umbel.backends.nats.errors import (
    NAME_TAKEN,
    NO_CONSUMER,
    NO_STREAM,
    SUBJECT_TAKEN,
    JetStreamError,
)

_API = "$JS.API"
_CONSUMER = "umbel"
_TIMEOUT_SECONDS = 3.0
_DEDUPLICATION_SECONDS = 30.0
"""How long the server remembers message ids: longer than any call of ``send``. The default of two
minutes would keep the ids of millions of messages in memory."""
_MAX_ACK_PENDING = 100_000
_MAX_WAITING = 4096
"""Receivers that can wait for a stream at the same time."""


class Requester(Protocol):
    """A ``Connection`` or a ``RawConnection``."""

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes: ...


class Stream(msgspec.Struct, frozen=True):
    """A stream and its only subject."""

    name: str
    subject: str

    @property
    def next(self) -> str:
        """The subject of pull requests."""
        return f"{_API}.CONSUMER.MSG.NEXT.{self.name}.{_CONSUMER}"


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _ApiResponse(msgspec.Struct):
    error: _Error | None = None


class _PublishResponse(msgspec.Struct):
    """The response to a message: the stream that has stored it, or an error."""

    stream: str = ""
    error: _Error | None = None


_publish_response = msgspec.json.Decoder(_PublishResponse)
_api_response = msgspec.json.Decoder(_ApiResponse)


def check_stored(data: bytes) -> None:
    """Return if a stream has stored the message.

    Raises:
        JetStreamError: no stream has.
    """
    try:
        found = _publish_response.decode(data)
    except msgspec.MsgspecError:  # another subscriber of the subject responded first
        raise JetStreamError(
            0, "the response is not JetStream's; choose another namespace"
        ) from None
    if found.error is not None:
        raise JetStreamError(found.error.err_code, found.error.description)


async def missing_part(
    connection: Requester, stream: Stream
) -> Literal["stream", "consumer", None]:
    """Return what is missing on the server.

    Raises:
        JetStreamError: the server refuses. Or the error of a lost connection.
    """
    try:
        await _call(connection, f"CONSUMER.INFO.{stream.name}.{_CONSUMER}")
    except JetStreamError as error:
        if error.code == NO_STREAM:
            return "stream"
        if error.code == NO_CONSUMER:
            return "consumer"
        raise
    return None


async def create_stream(
    connection: Requester, stream: Stream, *, replicas: int, description: str
) -> bool:
    """Create a stream. Return False if another process has created it.

    The description must be unique: the server treats a second request with the same configuration
    as a repetition of the first, and reports success.
    """
    configuration = {
        "name": stream.name,
        "subjects": [stream.subject],
        "description": description,
        "retention": "workqueue",
        "storage": "file",
        "discard": "old",
        "num_replicas": replicas,
        "duplicate_window": int(_DEDUPLICATION_SECONDS * 1e9),
    }
    try:
        await _call(connection, f"STREAM.CREATE.{stream.name}", configuration)
    except JetStreamError as error:
        if error.code == NAME_TAKEN:
            return False
        if error.code == SUBJECT_TAKEN and await _exists(connection, stream):
            return False  # another process has just created it: the server checks the subject first
        raise
    return True


async def _exists(connection: Requester, stream: Stream) -> bool:
    try:
        await _call(connection, f"STREAM.INFO.{stream.name}")
    except JetStreamError as error:
        if error.code == NO_STREAM:
            return False
        raise
    return True


async def create_consumer(connection: Requester, stream: Stream, *, ack_wait: float) -> None:
    """Create the consumer that all receivers share, unless it exists."""
    config = {
        "durable_name": _CONSUMER,
        "deliver_policy": "all",
        "replay_policy": "instant",
        "ack_policy": "explicit",
        "ack_wait": int(ack_wait * 1e9),
        "max_deliver": -1,
        "max_ack_pending": _MAX_ACK_PENDING,
        "max_waiting": _MAX_WAITING,
    }
    body = {"stream_name": stream.name, "config": config}
    await _call(connection, f"CONSUMER.DURABLE.CREATE.{stream.name}.{_CONSUMER}", body)


async def purge(connection: Connection, stream: Stream) -> None:
    """Delete the messages of a stream, if it exists."""
    try:
        await _call(connection, f"STREAM.PURGE.{stream.name}")
    except JetStreamError as error:
        if error.code != NO_STREAM:
            raise


async def check(connection: Connection) -> None:
    """Return if JetStream responds for this account. Raise JetStreamError."""
    await _call(connection, "INFO")


async def _call(connection: Requester, path: str, body: Any = None) -> None:
    data = b"" if body is None else msgspec.json.encode(body)
    response = await connection.request(f"{_API}.{path}", data, _TIMEOUT_SECONDS)
    error = _api_response.decode(response).error
    if error is not None:
        raise JetStreamError(error.err_code, error.description)
