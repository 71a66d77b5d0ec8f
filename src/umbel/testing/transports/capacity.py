"""A receiver holds as many messages as it has capacity for, and is woken for new ones."""

from __future__ import annotations

import asyncio
from collections import Counter

from umbel.backends import Lane
from umbel.testing.transports.server import (
    CPU,
    IO,
    SOON,
    Server,
    ids,
    is_empty,
    receive,
    receive_all,
    send,
    transport_test,
)


class ReceiveCapacity:
    """Messages beyond a receiver's capacity are left to other receivers."""

    @transport_test
    async def test_no_more_is_received_than_there_is_room(self, s: Server) -> None:
        async with s.open() as one:
            await send(one, s, 10)
            await send(one, s, 10, kind="cpu")
            room, found = {IO: 2, CPU: 3}, Counter[Lane]()
            while room:
                new = await one.receive(room, SOON)
                await one.accept(new)
                found.update(arrival.lane for arrival in new)
                room = {lane: many - found[lane] for lane, many in {IO: 2, CPU: 3}.items()}
                assert min(room.values()) >= 0
                room = {lane: many for lane, many in room.items() if many}

    @transport_test
    async def test_messages_beyond_one_receivers_capacity_go_to_another(self, s: Server) -> None:
        async with s.open() as one, s.open() as other:
            sent = await send(one, s, 3)
            first = await receive(one, room=1)
            rest = await receive_all(other, 2)
            assert len(first) == 1
            assert sorted(ids(first) + ids(rest)) == sorted(sent)
            await one.accept(first)

    @transport_test
    async def test_a_full_receiver_hides_nothing_after_it_asked_for_more_before(
        self, s: Server
    ) -> None:
        async with s.open() as one, s.open() as other:
            await send(one, s, 4)
            await receive_all(one, 4)  # four are running now
            sent = await send(one, s, 4)
            mine = await receive(one, room=1)  # one of them has ended
            theirs = await receive_all(other, 3)
            assert sorted(ids(mine) + ids(theirs)) == sorted(sent)
            await one.accept(mine)

    @transport_test
    async def test_without_a_wait_it_returns_confirmed_messages(self, s: Server) -> None:
        async with s.open() as one, s.open() as other:
            for _ in range(5):
                sent = await send(one, s, 3)
                found: list[str] = []
                for _ in range(3):
                    new = await other.receive({IO: 3 - len(found)}, 0.0) if len(found) < 3 else []
                    await other.accept(new)
                    found += ids(new)
                assert found == sent

    @transport_test
    async def test_with_no_wait_and_nothing_there_it_returns(self, s: Server) -> None:
        async with s.open() as one:
            assert await one.receive({IO: 1}, 0.0) == []

    @transport_test
    async def test_a_released_message_does_not_disturb_a_concurrent_receive(
        self, s: Server
    ) -> None:
        async with s.open() as one:
            (job,) = await send(one, s, 1)
            for moment in range(40):
                held = await receive(one, room=1)
                assert ids(held) == [job]
                looking = asyncio.create_task(one.receive({IO: 1, CPU: 1}, 0.0))
                await asyncio.sleep(moment / 10_000)
                await one.release(held)
                await one.release(await looking)
            await one.accept(await receive(one, room=1))
            assert await is_empty(one)

    @transport_test
    async def test_many_messages_go_through_small_rooms(self, s: Server) -> None:
        async with s.open() as one:
            sent = []
            for _ in range(4):
                sent += await send(one, s, 500)
            found: list[str] = []
            while len(found) < 2000:
                new = await one.receive({IO: 64}, SOON)
                assert 0 < len(new) <= 64
                await one.accept(new)
                found += ids(new)
            assert found == sent


class Waking:
    """A waiting receiver is woken by a new message."""

    @transport_test
    async def test_a_waiting_receiver_is_woken(self, s: Server) -> None:
        async with s.open() as one, s.open() as other:
            waiting = asyncio.create_task(other.receive({IO: 5}, 30))
            await asyncio.sleep(0.3)
            (job,) = await send(one, s, 1)
            async with asyncio.timeout(SOON):
                found = await waiting
            assert ids(found) == [job]
            await other.accept(found)

    @transport_test
    async def test_it_waits_for_all_its_lanes(self, s: Server) -> None:
        async with s.open() as one, s.open() as other:
            waiting = asyncio.create_task(other.receive({IO: 5, CPU: 5}, 30))
            await asyncio.sleep(0.3)
            (job,) = await send(one, s, 1, kind="cpu")
            async with asyncio.timeout(SOON):
                found = await waiting
            assert [(a.lane, *ids([a])) for a in found] == [(CPU, job)]
            await other.accept(found)

    @transport_test
    async def test_a_nudge_ends_the_wait(self, s: Server) -> None:
        async with s.open() as one:
            waiting = asyncio.create_task(one.receive({IO: 5}, 30))
            await asyncio.sleep(0.3)
            one.stop_waiting()
            async with asyncio.timeout(SOON):
                assert await waiting == []

    @transport_test
    async def test_a_cancelled_wait_loses_nothing(self, s: Server) -> None:
        async with s.open() as one, s.open() as other:
            sent = []
            found: list[str] = []
            for _ in range(20):
                waiting = asyncio.create_task(other.receive({IO: 5}, 30))
                await asyncio.sleep(0.005)
                sent += await send(one, s, 1)
                waiting.cancel()
                try:
                    new = await waiting
                except asyncio.CancelledError:
                    continue
                await other.accept(new)
                found += ids(new)
            while len(found) < len(sent):
                new = await receive(other)
                await other.accept(new)
                found += ids(new)
            assert sorted(found) == sorted(sent)
            assert await is_empty(other)
