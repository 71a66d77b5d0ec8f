"""Receiving: credit for what there is room for, and what was not used of it is taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

from umbel.backends.amqp.cloudevents import to_arrival
from umbel.backends.amqp.connections import Connection
from umbel.backends.amqp.echoes import Echo
from umbel.backends.amqp.engine import ACCEPTED, RELEASED, Incoming
from umbel.backends.amqp.lanes import LARGEST, Disturbed, Lanes, finds
from umbel.backends.amqp.reconnecting import ANSWER, Line, agrees, silent
from umbel.backends.transport import Arrival, Lane
from umbel.errors import Unavailable

_MAKING = (0.1, 0.3, 1.0)
"""Seconds between tries to receive from a queue that somebody is just making."""
_PURGE = 1000
"""Messages that are dropped at a time."""

_generations = count(1)


class Token(NamedTuple):
    """What a message is acknowledged by: worthless when its link is gone."""

    generation: int
    number: int


class Intake:
    """One lane's link. What comes while nobody receives, or beyond the room, goes back at once."""

    def __init__(self, lane: Lane, connection: Connection, address: str) -> None:
        self.generation = next(_generations)
        self.lane = lane
        self.waiting: list[tuple[int, bytes]] = []
        self._room = 0
        self._numbers = count()
        self._held: dict[int, Any] = {}
        self.link = connection.receiver(address, self._came, 0, LARGEST)

    @property
    def is_full(self) -> bool:
        """Whether all that there is room for has come."""
        return len(self.waiting) >= self._room

    def offer(self, room: int) -> None:
        """Let come what is there now or later."""
        self._room = room
        self.link.more(room - len(self.waiting) - self.link.credit)

    def ask(self, room: int) -> None:
        """Let come what is there now, as far as there is room, and nothing later."""
        self._room = room
        self.link.drain(max(room - len(self.waiting) - self.link.credit, 0))

    def take(self) -> list[Arrival]:
        """What has come. From now on nobody receives."""
        self._room = 0
        came, self.waiting = self.waiting, []
        return [
            to_arrival(self.lane, Token(self.generation, number), data) for number, data in came
        ]

    def settle(self, number: int, state: int) -> None:
        """Say what became of one. Twice is fine."""
        delivery = self._held.pop(number, None)
        if delivery is not None:
            self.link.answer(delivery, state)

    def abandon(self) -> None:
        """Whoever received is gone: give back what has come, and what is on its way."""
        self._room = 0
        came, self.waiting = self.waiting, []
        for number, _ in came:
            self.settle(number, RELEASED)

    def _came(self, link: Incoming, delivery: Any, data: bytes) -> None:
        if len(self.waiting) >= self._room:
            link.answer(delivery, RELEASED)
            return
        number = next(self._numbers)
        self._held[number] = delivery
        self.waiting.append((number, data))


class Receiver:
    """See ``Transport.receive``. Connects on use and again after a loss."""

    def __init__(self, line: Line, lanes: Lanes) -> None:
        self._line = line
        self._lanes = lanes
        self._turn = asyncio.Lock()
        self._nudge = asyncio.Event()
        self._connection: Connection | None = None
        self._echo: Echo | None = None
        self._serving: dict[Lane, Intake] = {}
        self._intakes: dict[int, Intake] = {}
        """By generation: those that serve."""
        self._is_well = True
        """Whether the last tries to open a lane came to a good end: then they are worth a wait."""

    async def receive(self, room: Mapping[Lane, int], wait: float) -> list[Arrival]:
        """Up to so many of each lane. Nothing is handed out to somebody who was cancelled."""
        async with self._turn:
            self._nudge.clear()
            loop = asyncio.get_running_loop()
            until = loop.time() + wait
            room = {lane: many for lane, many in room.items() if many > 0}
            while room:
                found = await self._round(room, until)
                if found or self._nudge.is_set() or loop.time() >= until:
                    return found
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._nudge.wait()
            return []

    def nudge(self) -> None:
        """Make a ``receive`` that waits return."""
        self._nudge.set()
        if (connection := self._line.living) is not None:
            connection.stir()

    def settle(self, arrivals: Sequence[Arrival], state: int) -> None:
        """Say what became of messages. What belongs to no link any more comes again by itself."""
        for arrival in arrivals:
            token: Token = arrival.token
            intake = self._intakes.get(token.generation)
            if intake is not None:
                intake.settle(token.number, state)

    async def purge(self, queue: str) -> None:
        """Drop what waits in all lanes of a queue, by receiving it."""
        self.nudge()
        async with self._turn:
            connection = await self._line.connection()
            for lane in self._lanes.lanes(queue):
                if await finds(connection, self._lanes.address(connection, lane)):
                    while found := await self._round({lane: _PURGE}, 0.0):
                        self.settle(found, ACCEPTED)

    async def check(self) -> None:
        """Ask the broker something, or raise Unavailable."""
        connection = await self._line.connection()
        aside = connection.aside()
        try:
            if not await agrees(connection, aside):
                raise Unavailable(f"{connection.home.address}: {aside.why}")
        finally:
            aside.close()

    async def _round(self, room: Mapping[Lane, int], until: float) -> list[Arrival]:
        """What is there; if nothing is, the first that comes. Raises Unavailable."""
        connection, intakes, problem = await self._open_surely(room)
        try:
            await self._collect(connection, intakes)
            left = until - asyncio.get_running_loop().time()
            if left > 0 and problem is None and not any(one.waiting for one in intakes):
                await self._wait(connection, intakes, left)
        except Unavailable:
            if connection.is_open or asyncio.get_running_loop().time() >= until:
                raise
            return []  # lost, perhaps together with a queue: look again on another one
        except BaseException:
            connection.take_back(intake.link for intake in intakes)
            for intake in intakes:
                intake.abandon()
            raise
        found = [arrival for intake in intakes for arrival in intake.take()]
        if problem is not None and not found:
            raise problem
        return found

    async def _wait(
        self, connection: Connection, intakes: Mapping[Intake, int], left: float
    ) -> None:
        """Until something has come, a nudge, or the time is over."""
        for intake, many in intakes.items():
            intake.offer(many)
        await connection.until(
            lambda: self._nudge.is_set() or any(one.waiting or one.link.why for one in intakes),
            left,
        )
        if self._echo is None:
            for intake in intakes:
                intake.link.drain(0)
        else:
            connection.take_back(intake.link for intake in intakes)
        await self._finish(connection, intakes)

    async def _collect(self, connection: Connection, intakes: Mapping[Intake, int]) -> None:
        """What is there now."""
        if self._echo is None:
            for intake, many in intakes.items():
                intake.ask(many)
        else:
            for intake, many in intakes.items():
                intake.offer(many)
            connection.flush()
            connection.take_back(intake.link for intake in intakes)
        await self._finish(connection, intakes)

    async def _finish(self, connection: Connection, intakes: Mapping[Intake, int]) -> None:
        """Wait until all that was allowed to come has come."""
        if self._echo is not None:
            if not all(one.is_full for one in intakes):
                await self._echo.hear()  # now the queues have parted with it ...
                await self._echo.hear()  # ... and now it is here
        elif not await connection.until(
            lambda: all(one.link.why or one.link.drained for one in intakes), ANSWER
        ):
            raise silent(connection)

    async def _open_surely(
        self, room: Mapping[Lane, int]
    ) -> tuple[Connection, dict[Intake, int], Unavailable | None]:
        """An intake for each lane. While a queue is being made, the broker may give up the session
        or the connection of whoever asks for it: a moment later it is there."""
        for pause in _MAKING if self._is_well else ():
            connection = await self._line.connection()
            try:
                intakes, problem = await self._open(connection, room)
            except Unavailable:
                if connection.is_open:
                    raise
            else:
                if not isinstance(problem, Disturbed):
                    return connection, intakes, problem
            await asyncio.sleep(pause)
        connection = await self._line.connection()
        intakes, problem = await self._open(connection, room)
        self._is_well = problem is None
        return connection, intakes, problem

    async def _open(
        self, connection: Connection, room: Mapping[Lane, int]
    ) -> tuple[dict[Intake, int], Unavailable | None]:
        """An intake for each lane. One that cannot be had keeps nobody from what others bring."""
        if connection is not self._connection:
            await self._begin(connection)
        found: dict[Intake, int] = {}
        problem: Unavailable | None = None
        for lane, many in room.items():
            intake = self._serving.get(lane)
            if intake is not None and intake.link.why:
                await self._lanes.refused(connection, lane, intake.link.why)
                intake = None
            try:
                found[intake or await self._open_lane(connection, lane)] = many
            except Unavailable as error:
                if not connection.is_open:
                    raise
                problem = error
        return found, problem

    async def _open_lane(self, connection: Connection, lane: Lane) -> Intake:
        await self._lanes.prepare(connection, lane)
        intake = Intake(lane, connection, self._lanes.address(connection, lane))
        if not await agrees(connection, intake.link):
            raise await self._lanes.refused(connection, lane, intake.link.why)
        self._lanes.saw(lane)
        self._intakes = {n: one for n, one in self._intakes.items() if not one.link.why}
        self._intakes[intake.generation] = self._serving[lane] = intake
        return intake

    async def _begin(self, connection: Connection) -> None:
        self._connection, self._serving, self._intakes, self._echo = None, {}, {}, None
        dialect = self._lanes.dialect(connection)
        if dialect.early:
            echo = Echo(connection, dialect, self._lanes.echo())
            await echo.open()
            self._echo = echo
        self._connection = connection
