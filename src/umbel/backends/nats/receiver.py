"""Receiving: one request to each lane for what there is room for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from umbel.backends.nats.errors import explaining
from umbel.backends.nats.headers import glimpse, read
from umbel.backends.nats.jetstream import Stream
from umbel.backends.nats.lanes import Lanes
from umbel.backends.nats.pulls import Message, Pull
from umbel.backends.nats.reconnecting import Link
from umbel.backends.transport import Arrival, Lane

_LONGEST = 30.0
"""Seconds that one request waits; a longer wait is several of them."""
_AGAIN = 0.01
"""Seconds until the next request, when others had asked for more than there is."""
_TRIES = 3


class Receiver:
    """Asks, and waits. Nothing stays here: what is not handed out goes back."""

    def __init__(self, link: Link, lanes: Lanes) -> None:
        self._link = link
        self._lanes = lanes
        self._nudges: set[asyncio.Future[None]] = set()

    async def receive(self, room: Mapping[Lane, int], wait: float) -> list[Arrival]:
        """Up to so many of each lane. Errors are those of the port."""
        nudge: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._nudges.add(nudge)
        try:
            with explaining(self._link.home.address):
                return await self._receive(
                    {lane: many for lane, many in room.items() if many > 0}, wait, nudge
                )
        finally:
            self._nudges.discard(nudge)

    def nudge(self) -> None:
        """End every wait now."""
        for nudge in self._nudges:
            if not nudge.done():
                nudge.set_result(None)

    async def _receive(
        self, room: Mapping[Lane, int], wait: float, nudge: asyncio.Future[None]
    ) -> list[Arrival]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        tries = 0
        while room:
            connection = await self._link.connection()
            await self._lanes.prepare(connection, room)
            wanted = {self._lanes.stream(lane): many for lane, many in room.items()}
            pull = Pull(connection, wanted, min(max(until - loop.time(), 0.0), _LONGEST))
            found, absent = await _finished(pull, nudge)
            for stream in absent:
                self._lanes.forget(self._lanes.lane(stream))
            if found:
                return [self._arrival(message) for message in found]
            if connection.loss is not None:
                raise connection.loss
            tries = tries + 1 if absent else 0
            if tries > _TRIES:
                raise TimeoutError
            if not absent:
                if nudge.done() or loop.time() >= until:
                    return []
                await asyncio.sleep(_AGAIN)
        await asyncio.wait([nudge], timeout=wait)
        return []

    def _arrival(self, message: Message) -> Arrival:
        return Arrival(
            lane=self._lanes.lane(message.stream),
            token=message.token,
            data=message.data,
            id=glimpse(message.headers),
            read=partial(read, message.headers, message.data),
        )


async def _finished(pull: Pull, nudge: asyncio.Future[None]) -> tuple[list[Message], list[Stream]]:
    """What a request brought, and the streams that are not there, or do not answer."""
    try:
        await pull.wait(nudge)
        absent = [*pull.gone, *pull.silent]
        return await pull.finish(), absent
    except BaseException:
        pull.abandon()
        raise
