"""Redis as a transport that carries messages for another job store: a stream for each lane.

A receiver has a name while its connection lasts, and a key that expires unless it is renewed. The
messages of a name without such a key are returned by any receiver that checks the lane. The next
connection has another name, so messages whose delivery was lost with a connection are returned,
too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from umbel.backends.notifier import WakeUpListener
from umbel.backends.redis.address import RedisAddress
from umbel.backends.redis.connections import Connection, run_script
from umbel.backends.redis.database import Database
from umbel.backends.redis.replies import push_replies
from umbel.backends.redis.scripts import pack, root_of, scripts
from umbel.backends.redis.stream_entries import (
    MAX_BODY_BYTES,
    Row,
    batches,
    from_fields,
    lane_name,
    to_row,
)
from umbel.backends.redis.values import text
from umbel.backends.transport import Arrival, Lane, OnLaneMissing, Reply
from umbel.errors import ConfigurationError, UmbelError, Unavailable
from umbel.messages import KINDS, Envelope, random_hex
from umbel.messages.documents import without_data

LUA = scripts("transport.lua", "streams.lua")
_MAX_TRIES = 5
_CLOSE_SECONDS = 2.0
"""After that, the server returns the messages when the key of the receiver expires."""

Ids = dict[str, list[str]]
"""Ids of messages, by the name of their lane."""


class RedisTransport:
    """See ``umbel.backends.transport.Transport`` for what each method guarantees.

    If a process dies, the messages that it has not accepted are returned when its key expires. The
    key is kept for ``receiver_ttl`` seconds and renewed three times in that time. Accepted messages
    are reported with the next call. If that report is lost, they are delivered again, which is
    harmless.

    Raises:
        ConfigurationError: ``receiver_ttl`` is out of range.
    """

    def __init__(
        self,
        address: RedisAddress,
        *,
        namespace: str,
        on_lane_missing: OnLaneMissing,
        receiver_ttl: float = 15.0,
    ) -> None:
        if not 0.1 <= receiver_ttl <= 3600:
            raise ConfigurationError(f"receiver_ttl={receiver_ttl!r}: give seconds, 0.1 to 3600")
        self.max_body_bytes = MAX_BODY_BYTES
        self._address = address
        self._root = root_of(namespace)
        self._on_missing = on_lane_missing
        self._receiver_ttl = receiver_ttl
        self._sending = Database(address)
        self._receiving = Database(address, size=1)
        self._connection: Connection | None = None
        self._name = ""
        self._former: set[str] = set()
        self._lanes: dict[str, Lane] = {}
        self._held: set[tuple[str, str]] = set()
        self._accepted: Ids = {}
        self._returned: Ids = {}
        self._damaged: list[str] = []
        """Lanes that were reported as missing, or as having possibly lost messages."""
        self._next_check = 0.0
        self._keep_alive_task: asyncio.Task[None] | None = None
        self._stops = 0
        self._wake_ups: set[WakeUpListener] = set()

    async def send(self, envelopes: Sequence[Envelope]) -> None:
        rows = [to_row(envelope) for envelope in envelopes]
        start = 0
        for batch in batches(envelopes):
            await self._send(rows[start : start + len(batch)])
            start += len(batch)

    async def receive(self, capacity: Mapping[Lane, int], wait: float) -> list[Arrival]:
        wanted = {lane_name(lane): count for lane, count in capacity.items() if count > 0}
        self._lanes |= {lane_name(lane): lane for lane in capacity}
        clock, stops = asyncio.get_running_loop().time, self._stops
        until = clock() + wait
        with self._listening(wanted) as wake_up:
            while True:
                wake_up.clear()
                arrivals = await self._call(wanted) if wanted else []
                left = until - clock()
                if arrivals or left <= 0 or stops != self._stops:
                    return arrivals
                await wake_up.wait(min(left, self._poll_seconds()))

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        self._record([arrival.token for arrival in arrivals], self._accepted)

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        # Messages that were delivered under a former name have been returned already.
        tokens = [arrival.token for arrival in arrivals if arrival.token in self._held]
        self._record(tokens, self._returned)
        with suppress(Unavailable):  # reported with the next call
            await self._call({})

    async def reply(self, replies: Sequence[Reply]) -> None:
        await push_replies(self._sending, [_without_large_data(reply) for reply in replies])

    def stop_waiting(self) -> None:
        self._stops += 1
        for wake_up in self._wake_ups:
            wake_up.notify("")

    async def purge(self, queue: str) -> None:
        lanes = [lane_name(Lane(queue, kind)) for kind in KINDS]
        await self._sending.run(LUA["purge"], self._root, pack(lanes))

    async def remove(self, queue: str) -> None:
        lanes = [lane_name(Lane(queue, kind)) for kind in KINDS]
        await self._sending.run(LUA["remove"], self._root, pack(lanes))

    async def check(self) -> None:
        await self._sending.execute("PING")

    async def close(self) -> None:
        keep_alive_task, self._keep_alive_task = self._keep_alive_task, None
        if keep_alive_task is not None:
            keep_alive_task.cancel()
            await asyncio.wait([keep_alive_task])
        if self._name:
            names, self._name, self._connection = [*self._former, self._name], "", None
            self._former.clear()
            self._held.clear()
            arguments = pack(names, [*self._lanes], self._accepted)
            with suppress(UmbelError, TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._sending.run(LUA["close_receiver"], self._root, arguments)
        await self._receiving.close()
        await self._sending.close()

    # --- sending -----------------------------------------------------------------------------

    async def _send(self, rows: list[Row]) -> None:
        new_lanes: list[str] = []
        for _ in range(_MAX_TRIES):
            missing = await self._sending.run(LUA["send"], self._root, pack(new_lanes, rows))
            if not missing:
                return
            # Report before the lane is created, because this call may be cancelled.
            new_lanes = self._report_missing(missing)
        raise self._vanishing_error()

    # --- receiving ---------------------------------------------------------------------------

    async def _call(self, wanted: Mapping[str, int]) -> list[Arrival]:
        """Report what was accepted and returned, and take the messages of these lanes."""
        for _ in range(_MAX_TRIES):
            call_once = partial(self._call_once, wanted=wanted, new_lanes=self._damaged)
            damaged, found = await self._receiving.with_connection(call_once)
            self._damaged = self._report_missing(damaged)
            if found or not damaged:
                return self._read_arrivals(found)
        raise self._vanishing_error()

    async def _call_once(
        self, connection: Connection, wanted: Mapping[str, int], new_lanes: list[str]
    ) -> tuple[list[bytes], list[Any]]:
        """Make one call. Forget the reported messages only after the server has answered."""
        self._take_name_for(connection)
        now = asyncio.get_running_loop().time()
        is_check, former = bool(wanted) and now >= self._next_check, [*self._former]
        accepted, returned = _copy(self._accepted), _copy(self._returned)
        capacity = [part for pair in wanted.items() for part in pair]
        arguments = pack(
            *(self._name, int(self._receiver_ttl * 1000), former, [*self._lanes]),
            *(new_lanes, accepted, returned, is_check, capacity),
        )
        damaged, found = await run_script(connection, LUA["receive"], self._root, arguments)
        self._former.difference_update(former)
        _remove_reported(self._accepted, accepted)
        _remove_reported(self._returned, returned)
        if is_check:
            self._next_check = now + self._receiver_ttl / 3
        return damaged, found

    def _take_name_for(self, connection: Connection) -> None:
        """Take a new name for a new connection: the last answer to the former name may be lost."""
        if connection is not self._connection:
            if self._name:
                self._former.add(self._name)
            self._connection, self._name = connection, random_hex(8)
            self._held.clear()
            self._next_check = 0.0

    def _read_arrivals(self, found: Sequence[Any]) -> list[Arrival]:
        arrivals = [_arrival(self._lanes, *found[at : at + 3]) for at in range(0, len(found), 3)]
        self._held.update(arrival.token for arrival in arrivals)
        if arrivals and (self._keep_alive_task is None or self._keep_alive_task.done()):
            self._keep_alive_task = asyncio.create_task(self._keep_alive(), name="umbel-receiver")
        return arrivals

    def _record(self, tokens: Sequence[tuple[str, str]], ids: Ids) -> None:
        self._held.difference_update(tokens)
        for lane, entry_id in tokens:
            ids.setdefault(lane, []).append(entry_id)

    async def _keep_alive(self) -> None:
        """Renew the key while messages are held, or something is to be reported."""
        while self._held or self._accepted or self._returned:
            await asyncio.sleep(self._receiver_ttl / 3)
            with suppress(UmbelError):  # the next send or receive raises it, too
                await self._call({})

    # --- both --------------------------------------------------------------------------------

    def _report_missing(self, lanes: Sequence[bytes]) -> list[str]:
        names = [text(name) for name in lanes]
        for name in names:
            kind, _, queue = name.partition(":")
            self._on_missing(Lane(queue, kind))
        return names

    def _vanishing_error(self) -> Unavailable:
        return Unavailable(
            f"{self._address.label}: Umbel's streams vanish as soon as they are created; find out"
            " what deletes them, and set maxmemory-policy noeviction"
        )

    def _poll_seconds(self) -> float:
        """Return the maximum time between calls if no wake-up arrives."""
        is_subscribed = self._receiving.listener(self._root).is_subscribed(self._root)
        return self._receiver_ttl / 3 if is_subscribed else self._address.poll

    @contextmanager
    def _listening(self, lanes: Iterable[str]) -> Iterator[WakeUpListener]:
        listener = self._receiving.listener(self._root)
        with listener.notifier.listen([f"m:{self._root}:{lane}" for lane in lanes]) as wake_up:
            self._wake_ups.add(wake_up)
            try:
                yield wake_up
            finally:
                self._wake_ups.discard(wake_up)


def _arrival(
    lanes: Mapping[str, Lane], lane: bytes, entry_id: bytes, fields: list[bytes]
) -> Arrival:
    headers, data = from_fields(fields)
    name = lane.decode()
    return Arrival.of(lanes[name], (name, text(entry_id)), headers, data)


def _without_large_data(reply: Reply) -> Reply:
    """Return the reply, without its data if that is too large."""
    if len(reply.document.body.data) <= MAX_BODY_BYTES:
        return reply
    return replace(reply, document=without_data(reply.document, MAX_BODY_BYTES))


def _copy(ids: Ids) -> Ids:
    return {lane: [*some] for lane, some in ids.items()}


def _remove_reported(ids: Ids, reported: Ids) -> None:
    """Remove the reported ids; ids that were added meanwhile stay."""
    for lane, some in reported.items():
        rest = ids[lane][len(some) :]
        if rest:
            ids[lane] = rest
        else:
            del ids[lane]
