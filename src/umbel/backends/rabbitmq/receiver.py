"""Receives from the lanes that somebody has room for, over a connection that never publishes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from umbel.backends.rabbitmq.address import Home
from umbel.backends.rabbitmq.connections import Connection, connect
from umbel.backends.rabbitmq.consumer import Intake, Token
from umbel.backends.rabbitmq.queues import Queues
from umbel.backends.transport import Arrival, Lane
from umbel.errors import Unavailable

_LOOK = 1.0
"""Seconds in which something that waits on the server, with room for it here, has to come."""
_GLANCE = 0.05
_MAKING = (0.1, 0.3, 1.0)
"""Seconds between tries to consume from a queue that somebody is just making."""
_PATIENCE = 20.0
"""Seconds in which a queue that exists can be consumed from again, if it ever can."""


class Receiver:
    """See ``Transport.receive``. Connects on use and again after a loss."""

    def __init__(self, home: Home, queues: Queues) -> None:
        self._home = home
        self._queues = queues
        self._opening = asyncio.Lock()
        self._connection: Connection | None = None
        self._serving: dict[Lane, Intake] = {}
        self._intakes: dict[int, Intake] = {}
        """By generation: those that serve, and those that were replaced and are not done."""
        self._failing: dict[Lane, float] = {}
        """Since when nobody here could consume from a queue that exists."""
        self._stirred = asyncio.Event()
        self._nudged = False

    async def receive(self, room: Mapping[Lane, int], wait: float) -> list[Arrival]:
        """Up to so many of each lane. Nothing is handed out to somebody who was cancelled."""
        self._nudged = False
        room = {lane: many for lane, many in room.items() if many > 0}
        until = asyncio.get_running_loop().time() + (wait if wait > 0 else _LOOK)
        while True:
            self._stirred.clear()
            found = await self._ask_and_take(room)
            if found or self._nudged:
                return found
            try:
                async with asyncio.timeout_at(until):
                    if wait > 0:
                        await self._stirred.wait()
                    elif await self._is_empty(room):
                        return self._take(room)
            except TimeoutError:
                return self._take(room)

    def nudge(self) -> None:
        """Make a ``receive`` that waits return."""
        self._nudged = True
        self._stirred.set()

    def accept(self, arrivals: Sequence[Arrival]) -> None:
        """These are in the books."""
        for intake, tags in self._sorted(arrivals):
            intake.accept(tags)

    def release(self, arrivals: Sequence[Arrival]) -> None:
        """These go back."""
        for intake, tags in self._sorted(arrivals):
            intake.release(tags)

    async def purge(self, queue: str) -> None:
        """Drop what waits in all lanes of a queue, on the server and here."""
        connection = await self._connected()
        for lane in self._queues.lanes(queue):
            channel = await connection.channel()
            try:
                await channel.purges(self._queues.name(lane))
            finally:
                channel.close()
            if lane in self._serving:
                self._serving[lane].forget()

    async def check(self) -> None:
        """Ask the server something, or raise Unavailable."""
        connection = await self._connected()
        (await connection.channel()).close()

    async def close(self) -> None:
        """Acknowledge what was accepted; the rest goes back. Twice is fine."""
        connection, self._connection = self._connection, None
        for intake in self._intakes.values():
            intake.settle()
        self._intakes.clear()
        self._serving.clear()
        if connection is not None:
            await connection.close()

    async def _ask_and_take(self, room: Mapping[Lane, int]) -> list[Arrival]:
        """What has been pushed, after the server was told what there is room for.

        A lane that cannot be opened keeps nobody from what other lanes bring.
        """
        problem: Unavailable | None = None
        for lane, many in room.items():
            intake = self._serving.get(lane)
            if intake is not None and intake.suits(many):
                intake.ask(many)
                continue
            try:
                await self._open_surely(lane, many)
            except Unavailable as error:
                problem = error
                if self._connection is None or not self._connection.is_open:
                    break  # the others would only wait for the same
        found = self._take(room)
        if problem is not None and not found:
            raise problem
        return found

    async def _open_surely(self, lane: Lane, many: int) -> None:
        """Open a lane. While another process is making its queue the server may break down over
        whoever consumes from it, and cut the connection: a moment later it is ready."""
        for pause in _MAKING:
            await self._connected()  # a server that is not there at all is told at once
            with suppress(Unavailable):
                return await self._open(lane, many)
            await asyncio.sleep(pause)
        return await self._open(lane, many)

    def _take(self, room: Mapping[Lane, int]) -> list[Arrival]:
        found: list[Arrival] = []
        for lane, many in room.items():
            if lane in self._serving:
                found += self._serving[lane].take(many)
        return found

    async def _is_empty(self, room: Mapping[Lane, int]) -> bool:
        """Whether all that was confirmed before this call is here. If not, look again in a moment:
        it is on its way, or an intake that could not tell is to be replaced first."""
        counts = [await self._serving[lane].count() for lane in room]
        if all(waiting == 0 for waiting in counts):
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(_GLANCE):
                await self._stirred.wait()
        return False

    def _sorted(self, arrivals: Sequence[Arrival]) -> list[tuple[Intake, list[int]]]:
        """What belongs to which intake. What belongs to none any more comes again by itself."""
        tags: dict[int, list[int]] = {}
        for arrival in arrivals:
            token: Token = arrival.token
            tags.setdefault(token.generation, []).append(token.tag)
        return [(self._intakes[one], found) for one, found in tags.items() if one in self._intakes]

    async def _open(self, lane: Lane, room: int) -> None:
        """Serve a lane by a new intake, in place of one that is lost or too small."""
        connection = await self._connected()
        async with self._opening:
            intake = self._serving.get(lane)
            if intake is not None and intake.suits(room):
                return
            channel = await self._queues.open(connection, lane)
            if intake is not None:
                intake.retire()
            name = self._queues.name(lane)
            intake = Intake(lane, name, channel, room=room, stir=self._stirred.set)
            await self._start(intake)
            self._intakes = {n: one for n, one in self._intakes.items() if one.is_open}
            self._intakes[intake.generation] = self._serving[lane] = intake

    async def _start(self, intake: Intake) -> None:
        """Begin to consume. A server that was killed just after it had made a queue may come back
        with one that exists by name alone, for ever: that is replaced."""
        now = asyncio.get_running_loop().time()
        try:
            await intake.start()
        except Unavailable:
            if now - self._failing.setdefault(intake.lane, now) > _PATIENCE:
                await self._queues.replace(await self._reconnected(), intake.lane)
            raise
        self._failing.pop(intake.lane, None)

    async def _connected(self) -> Connection:
        async with self._opening:
            return await self._reconnected()

    async def _reconnected(self) -> Connection:
        if self._connection is None or not self._connection.is_open:
            self._connection = await connect(self._home, "receiver")
        return self._connection
