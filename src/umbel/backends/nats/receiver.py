"""Receives messages: one pull request to each lane, up to its capacity."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from umbel.backends.nats.errors import translate_errors
from umbel.backends.nats.headers import find_id, read
from umbel.backends.nats.jetstream import Stream
from umbel.backends.nats.lanes import LaneStreams
from umbel.backends.nats.pulls import Pull, ReceivedMessage
from umbel.backends.nats.reconnecting import Reconnector
from umbel.backends.transport import Arrival, Lane

_MAX_PULL_SECONDS = 30.0
"""A longer wait consists of several pulls."""
_PULL_DELAY = 0.01
"""Seconds until the next pull if the last one ended early and empty."""
_MAX_MISSING_PULLS = 3


class Receiver:
    """Keeps no messages: what is not handed out is returned to the server."""

    def __init__(self, reconnector: Reconnector, streams: LaneStreams) -> None:
        self._reconnector = reconnector
        self._streams = streams
        self._waiting: set[asyncio.Future[None]] = set()

    async def receive(self, capacity: Mapping[Lane, int], wait: float) -> list[Arrival]:
        """See ``Transport.receive``."""
        stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(stopped)
        try:
            with translate_errors(self._reconnector.address.label):
                return await self._receive(
                    {lane: many for lane, many in capacity.items() if many > 0}, wait, stopped
                )
        finally:
            self._waiting.discard(stopped)

    def stop_waiting(self) -> None:
        """Make all calls of ``receive`` return."""
        for stopped in self._waiting:
            if not stopped.done():
                stopped.set_result(None)

    async def _receive(
        self, capacity: Mapping[Lane, int], wait: float, stopped: asyncio.Future[None]
    ) -> list[Arrival]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        missing_pulls = 0
        while capacity:
            connection = await self._reconnector.connection()
            await self._streams.prepare(connection, capacity)
            wanted = {self._streams.stream(lane): many for lane, many in capacity.items()}
            pull = Pull(connection, min(max(until - loop.time(), 0.0), _MAX_PULL_SECONDS))
            found, missing = await _run(pull, wanted, stopped)
            for stream in missing:
                self._streams.forget(self._streams.lane(stream))
            if found:
                return [self._arrival(message) for message in found]
            if not connection.is_open:
                raise connection.error or TimeoutError
            missing_pulls = missing_pulls + 1 if missing else 0
            if missing_pulls > _MAX_MISSING_PULLS:
                raise TimeoutError
            if not missing:
                if stopped.done() or loop.time() >= until:
                    return []
                await asyncio.sleep(_PULL_DELAY)
        await asyncio.wait([stopped], timeout=wait)
        return []

    def _arrival(self, message: ReceivedMessage) -> Arrival:
        return Arrival(
            lane=self._streams.lane(message.stream),
            token=message.token,
            data=message.data,
            id=find_id(message.headers),
            read=partial(read, message.headers, message.data),
        )


async def _run(
    pull: Pull, wanted: Mapping[Stream, int], stopped: asyncio.Future[None]
) -> tuple[list[ReceivedMessage], list[Stream]]:
    """Return the messages of a pull, and the streams that are missing or do not respond."""
    try:
        await pull.send(wanted)
        await pull.wait(stopped)
        missing = [*pull.deleted, *pull.silent]
        return await pull.finish(), missing
    except BaseException:
        pull.abandon()
        raise
