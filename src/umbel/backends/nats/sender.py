"""Sending: a batch is written at once, and all of its confirmations are awaited together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from umbel.backends.nats.connections import Connection
from umbel.backends.nats.errors import explaining
from umbel.backends.nats.headers import write
from umbel.backends.nats.jetstream import check_stored
from umbel.backends.nats.lanes import Lanes
from umbel.backends.nats.outgoing import Answer, Post, is_missing
from umbel.backends.nats.reconnecting import Link
from umbel.backends.transport import Lane
from umbel.errors import MessageTooLarge, Unavailable
from umbel.messages import Envelope, random_hex

ASSUMED = 1_000_000
"""Bytes of body that a server takes as it comes, before one has told its own limit."""
_HEADROOM = 48_576
"""Bytes kept for headers: of the usual 1 MiB, the million above is left."""
_PATIENCE = 10.0
CONFIRMED = 4.0
TRIES = 3
_MOST, _LARGEST = 2000, 4_000_000
"""Messages, and bytes, that may be on their way unconfirmed. Time is measured for each such lot:
a large batch over a slow line takes long, but it gets there."""


def limit_of(max_payload: int) -> int:
    """Bytes of body, for a server that takes so many with the headers."""
    return max(max_payload - _HEADROOM, max_payload // 2)


class Parcel(NamedTuple):
    """A message, and where it goes."""

    lane: Lane
    post: Post


class Sender:
    """Sends batches until the server has confirmed every message."""

    def __init__(self, link: Link, lanes: Lanes) -> None:
        self._link = link
        self._lanes = lanes

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        """All are durable when it returns. Errors are those of the port."""
        # The server drops a message with an id that it has seen. That is meant for what is
        # repeated below, when an answer got lost, and for nothing else: a job that is sent again,
        # because it is retried or recalled, is a message like any other. So each call has a name
        # of its own, and ids are the job's and the call's together.
        sending = random_hex(8)
        with explaining(self._link.home.address):
            largest = (await self._link.connection()).max_payload
            parcels = packed(envelopes, self._lanes, sending, largest)
            for window in windows(parcels):
                async with asyncio.timeout(_PATIENCE):
                    await self._deliver(window)

    async def _deliver(self, parcels: Sequence[Parcel]) -> None:
        loss: Exception | None = None
        for _ in range(TRIES):
            connection = await self._link.connection()
            await self._lanes.prepare(connection, {parcel.lane for parcel in parcels})
            answers = await connection.publish([parcel.post for parcel in parcels], CONFIRMED)
            parcels = self._unconfirmed(parcels, answers)
            if not parcels:
                return
            loss = connection.loss
            self._give_up_on(connection, answers)
        raise loss or unconfirmed(self._link.home.address, len(parcels))

    def _unconfirmed(
        self, parcels: Sequence[Parcel], answers: Sequence[Answer | None]
    ) -> list[Parcel]:
        """What has to be sent again. Where there is no stream, one will be made."""
        again: list[Parcel] = []
        for parcel, answer in zip(parcels, answers, strict=True):
            if answer is None:
                again.append(parcel)
            elif is_missing(answer):
                self._lanes.forget(parcel.lane)
                again.append(parcel)
            else:
                check_stored(answer.data)
        return again

    def _give_up_on(self, connection: Connection, answers: Sequence[Answer | None]) -> None:
        """A connection that brings no answers in all that time is as good as lost."""
        if None in answers:
            connection.lose(TimeoutError("no confirmation came in time"))


def unconfirmed(address: str, many: int) -> Unavailable:
    """What is wrong when answers do not come."""
    return Unavailable(
        f"{address} did not confirm {many:,} messages; check that the server is not overloaded"
        " and, in a cluster, that most of its servers run"
    )


def packed(envelopes: Sequence[Envelope], lanes: Lanes, sending: str, largest: int) -> list[Parcel]:
    """Envelopes as messages, under a name that is this sending's own."""
    return [_parcel(envelope, lanes, sending, largest) for envelope in envelopes]


def _parcel(envelope: Envelope, lanes: Lanes, sending: str, largest: int) -> Parcel:
    lane = Lane(envelope.queue, envelope.kind)
    head, data = write(envelope, sending), envelope.body.data
    limit = limit_of(largest)
    if len(data) > limit or len(head) + len(data) > largest:
        raise MessageTooLarge(
            f"job {envelope.id} has {len(data):,} bytes and {len(head):,} of headers; the"
            f" server takes {limit:,}, and {largest:,} with the headers: pass a reference"
            " instead of the data, or raise the server's max_payload"
        )
    return Parcel(lane, Post(lanes.stream(lane).subject, head, data))


def windows(parcels: Sequence[Parcel]) -> Iterator[list[Parcel]]:
    """The parcels, as many at a time as may be on their way."""
    window: list[Parcel] = []
    size = 0
    for parcel in parcels:
        if window and (len(window) == _MOST or size + len(parcel.post.data) > _LARGEST):
            yield window
            window, size = [], 0
        window.append(parcel)
        size += len(parcel.post.data)
    yield window
