"""The streams and consumers that JetStream has for the lanes."""

from __future__ import annotations

from typing import Literal

import msgspec
from nats.js.api import ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NotFoundError

from umbel.backends.nats.connections import Connection
from umbel.backends.nats.errors import NAME_TAKEN, NO_CONSUMER, NO_STREAM, SUBJECT_TAKEN

_CONSUMER = "umbel"
_DEDUPLICATION_SECONDS = 30.0
"""How long the server remembers message ids: longer than any call of ``send``. The default of two
minutes would keep the ids of millions of messages in memory."""
_MAX_ACK_PENDING = 100_000
_MAX_WAITING = 4096
"""Receivers that can wait for a stream at the same time."""


class Stream(msgspec.Struct, frozen=True):
    """A stream and its only subject."""

    name: str
    subject: str

    @property
    def next(self) -> str:
        """The subject of pull requests."""
        return f"$JS.API.CONSUMER.MSG.NEXT.{self.name}.{_CONSUMER}"


async def missing_part(
    connection: Connection, stream: Stream
) -> Literal["stream", "consumer", None]:
    """Return what is missing on the server.

    Raises:
        APIError: the server refuses. Or the error of a lost connection.
    """
    try:
        await connection.call(connection.jetstream.consumer_info(stream.name, _CONSUMER))
    except NotFoundError as error:
        if error.err_code == NO_STREAM:
            return "stream"
        if error.err_code == NO_CONSUMER:
            return "consumer"
        raise
    return None


async def create_stream(
    connection: Connection, stream: Stream, *, replicas: int, description: str
) -> bool:
    """Create a stream. Return False if another process has created it.

    The description must be unique: the server treats a second request with the same configuration
    as a repetition of the first, and reports success.
    """
    config = StreamConfig(
        name=stream.name,
        subjects=[stream.subject],
        description=description,
        retention=RetentionPolicy.WORK_QUEUE,
        storage=StorageType.FILE,
        num_replicas=replicas,
        duplicate_window=_DEDUPLICATION_SECONDS,
    )
    try:
        await connection.call(connection.jetstream.add_stream(config))
    except APIError as error:
        if error.err_code == NAME_TAKEN:
            return False
        if error.err_code == SUBJECT_TAKEN and await _exists(connection, stream):
            return False  # another process has just created it: the server checks the subject first
        raise
    return True


async def _exists(connection: Connection, stream: Stream) -> bool:
    try:
        await connection.call(connection.jetstream.stream_info(stream.name))
    except NotFoundError:
        return False
    return True


async def create_consumer(connection: Connection, stream: Stream, *, ack_wait: float) -> None:
    """Create the consumer that all receivers share, unless it exists."""
    config = ConsumerConfig(
        durable_name=_CONSUMER,
        ack_wait=ack_wait,
        max_deliver=-1,
        max_ack_pending=_MAX_ACK_PENDING,
        max_waiting=_MAX_WAITING,
    )
    await connection.call(connection.jetstream.add_consumer(stream.name, config))


async def purge(connection: Connection, stream: Stream) -> None:
    """Delete the messages of a stream, if it exists."""
    try:
        await connection.call(connection.jetstream.purge_stream(stream.name))
    except NotFoundError as error:
        if error.err_code != NO_STREAM:
            raise


async def delete_stream(connection: Connection, stream: Stream) -> None:
    """Delete a stream with its messages, if it exists."""
    try:
        await connection.call(connection.jetstream.delete_stream(stream.name))
    except NotFoundError as error:
        if error.err_code != NO_STREAM:
            raise


async def check(connection: Connection) -> None:
    """Return if JetStream responds for this account. Raise APIError."""
    await connection.call(connection.jetstream.account_info())
