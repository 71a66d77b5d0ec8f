"""Messages by way of Redis while another store keeps the books: a stream for each lane.

A receiver has a name for as long as its connection holds, and a key that expires unless it is
renewed shows that it lives. What belongs to a name without such a key goes back: whoever visits
a lane sees to that. So do messages whose answer was lost with a connection, since there is another
name on the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from umbel.backends.notifier import WakeUpListener
from umbel.backends.redis.address import Home
from umbel.backends.redis.connections import Connection, run
from umbel.backends.redis.database import Database
from umbel.backends.redis.replies import hand_out
from umbel.backends.redis.scripts import pack, root_of, scripts
from umbel.backends.redis.stream_entries import LIMIT, Row, from_fields, lane_name, to_row, windows
from umbel.backends.redis.values import text
from umbel.backends.transport import Arrival, Lane, Lost, Reply
from umbel.errors import ConfigurationError, UmbelError, Unavailable
from umbel.messages import KINDS, Envelope, random_hex
from umbel.messages.documents import without_data

LUA = scripts("transport.lua", "streams.lua")
_TRIES = 5
_PARTING = 2.0
"""Seconds that closing may take; what is not said then the server finds out by itself."""

Ids = dict[str, list[str]]
"""Ids of messages, by the name of their lane."""


class RedisTransport:
    """See ``brokers.transport.Transport`` for what each method promises.

    What a process received and did not accept before it died goes back when its sign of life,
    which is renewed three times in ``life`` seconds, has expired. What is accepted is said to the
    server with the next visit: should it never be, it comes again, which is harmless.

    Raises:
        ConfigurationError: ``life`` is no time.
    """

    def __init__(self, home: Home, *, namespace: str, lost: Lost, life: float = 15.0) -> None:
        if not 0.1 <= life <= 3600:
            raise ConfigurationError(f"life={life!r}: give seconds, 0.1 to 3600")
        self.limit = LIMIT
        self._home = home
        self._root = root_of(namespace)
        self._lost = lost
        self._life = life
        self._sending = Database(home)
        self._receiving = Database(home, size=1)
        self._connection: Connection | None = None
        self._name = ""
        self._former: set[str] = set()
        self._lanes: dict[str, Lane] = {}
        self._held: set[tuple[str, str]] = set()
        self._accepted: Ids = {}
        self._returned: Ids = {}
        self._unsound: list[str] = []
        """Lanes of which it was told that they are missing, or may have lost something."""
        self._next_look = 0.0
        self._keeping: asyncio.Task[None] | None = None
        self._nudges = 0
        self._ears: set[WakeUpListener] = set()

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        rows = [to_row(envelope) for envelope in envelopes]
        start = 0
        for window in windows(envelopes):
            await self._send(rows[start : start + len(window)])
            start += len(window)

    async def receive(self, room: Mapping[Lane, int], wait: float) -> list[Arrival]:
        wanted = {lane_name(lane): many for lane, many in room.items() if many > 0}
        self._lanes |= {lane_name(lane): lane for lane in room}
        clock, nudges = asyncio.get_running_loop().time, self._nudges
        until = clock() + wait
        with self._listening(wanted) as ear:
            while True:
                ear.clear()
                arrivals = await self._visit(wanted) if wanted else []
                left = until - clock()
                if arrivals or left <= 0 or nudges != self._nudges:
                    return arrivals
                await ear.wait(min(left, self._pause()))

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        self._settle([one.token for one in arrivals], self._accepted)

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        # What was handed out under a former name has gone back already.
        mine = [one.token for one in arrivals if one.token in self._held]
        self._settle(mine, self._returned)
        with suppress(Unavailable):  # then it is said with the next visit
            await self._visit({})

    async def reply(self, replies: Sequence[Reply]) -> None:
        await hand_out(self._sending, [_fitting(one) for one in replies])

    def nudge(self) -> None:
        self._nudges += 1
        for ear in self._ears:
            ear.ring("")

    async def purge(self, queue: str) -> None:
        lanes = [lane_name(Lane(queue, kind)) for kind in KINDS]
        await self._sending.run(LUA["drop"], self._root, pack(lanes))

    async def check(self) -> None:
        await self._sending.ask("PING")

    async def close(self) -> None:
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.wait([keeping])
        if self._name:
            names, self._name, self._connection = [*self._former, self._name], "", None
            self._former.clear()
            self._held.clear()
            arguments = pack(names, [*self._lanes], self._accepted)
            with suppress(UmbelError, TimeoutError):
                async with asyncio.timeout(_PARTING):
                    await self._sending.run(LUA["leave"], self._root, arguments)
        await self._receiving.close()
        await self._sending.close()

    # --- sending -----------------------------------------------------------------------------

    async def _send(self, rows: list[Row]) -> None:
        make: list[str] = []
        for _ in range(_TRIES):
            missing = await self._sending.run(LUA["send"], self._root, pack(make, rows))
            if not missing:
                return
            # Told before it is made: whoever waits here may be cancelled.
            make = self._told(missing)
        raise self._deleted()

    # --- receiving ---------------------------------------------------------------------------

    async def _visit(self, wanted: Mapping[str, int]) -> list[Arrival]:
        """Say what is to be said, and take what there is."""
        for _ in range(_TRIES):
            say = partial(self._say, wanted=wanted, make=self._unsound)
            unsound, found = await self._receiving.use(say)
            self._unsound = self._told(unsound)
            if found or not unsound:
                return self._handed_out(found)
        raise self._deleted()

    async def _say(
        self, connection: Connection, wanted: Mapping[str, int], make: list[str]
    ) -> tuple[list[bytes], list[Any]]:
        """One visit. Only when it is answered is what was said forgotten here."""
        self._bear_name_of(connection)
        now = asyncio.get_running_loop().time()
        look, former = bool(wanted) and now >= self._next_look, [*self._former]
        accepted, returned = _copied(self._accepted), _copied(self._returned)
        room = [part for pair in wanted.items() for part in pair]
        said = pack(
            *(self._name, int(self._life * 1000), former, [*self._lanes]),
            *(make, accepted, returned, look, room),
        )
        unsound, found = await run(connection, LUA["receive"], self._root, said)
        self._former.difference_update(former)
        _take_off(self._accepted, accepted)
        _take_off(self._returned, returned)
        if look:
            self._next_look = now + self._life / 3
        return unsound, found

    def _bear_name_of(self, connection: Connection) -> None:
        """Another connection, another name: nobody knows what the last one brought at the end."""
        if connection is not self._connection:
            if self._name:
                self._former.add(self._name)
            self._connection, self._name = connection, random_hex(8)
            self._held.clear()
            self._next_look = 0.0

    def _handed_out(self, found: Sequence[Any]) -> list[Arrival]:
        arrivals = [_arrival(self._lanes, *found[at : at + 3]) for at in range(0, len(found), 3)]
        self._held.update(one.token for one in arrivals)
        if arrivals and (self._keeping is None or self._keeping.done()):
            self._keeping = asyncio.create_task(self._keep(), name="umbel-receiver")
        return arrivals

    def _settle(self, tokens: Sequence[tuple[str, str]], how: Ids) -> None:
        self._held.difference_update(tokens)
        for lane, number in tokens:
            how.setdefault(lane, []).append(number)

    async def _keep(self) -> None:
        """Go on living while somebody works on what was handed out, or something is to be said."""
        while self._held or self._accepted or self._returned:
            await asyncio.sleep(self._life / 3)
            with suppress(UmbelError):  # whoever sends or receives meets it, too
                await self._visit({})

    # --- both --------------------------------------------------------------------------------

    def _told(self, lanes: Sequence[bytes]) -> list[str]:
        names = [text(name) for name in lanes]
        for name in names:
            kind, _, queue = name.partition(":")
            self._lost(Lane(queue, kind))
        return names

    def _deleted(self) -> Unavailable:
        return Unavailable(
            f"{self._home.address}: streams of ours vanish as soon as they are made; see who"
            " deletes them, and set maxmemory-policy noeviction"
        )

    def _pause(self) -> float:
        """Until the next look, if nothing is heard."""
        hears = self._receiving.listener(self._root).hears(self._root)
        return self._life / 3 if hears else self._home.poll

    @contextmanager
    def _listening(self, lanes: Iterable[str]) -> Iterator[WakeUpListener]:
        listener = self._receiving.listener(self._root)
        with listener.bell.listen([f"m:{self._root}:{lane}" for lane in lanes]) as ear:
            self._ears.add(ear)
            try:
                yield ear
            finally:
                self._ears.discard(ear)


def _arrival(lanes: Mapping[str, Lane], lane: bytes, number: bytes, fields: list[bytes]) -> Arrival:
    heading, data = from_fields(fields)
    name = lane.decode()
    return Arrival.of(lanes[name], (name, text(number)), heading, data)


def _fitting(reply: Reply) -> Reply:
    """A document that can be carried: without its data if that is too much."""
    if len(reply.document.body.data) <= LIMIT:
        return reply
    return replace(reply, document=without_data(reply.document, LIMIT))


def _copied(ids: Ids) -> Ids:
    return {lane: [*some] for lane, some in ids.items()}


def _take_off(ids: Ids, said: Ids) -> None:
    """What was said is done with; what came meanwhile stays."""
    for lane, some in said.items():
        rest = ids[lane][len(some) :]
        if rest:
            ids[lane] = rest
        else:
            del ids[lane]
