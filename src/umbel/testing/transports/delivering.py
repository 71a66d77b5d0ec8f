"""Messages arrive as they were sent, in order, until they are accepted."""

from __future__ import annotations

import pytest

from umbel.backends import Lane
from umbel.errors import MessageTooLarge
from umbel.messages import MESSAGEPACK, Body
from umbel.testing.transports.server import (
    CPU,
    IO,
    Server,
    envelope,
    ids,
    is_empty,
    read,
    receive,
    receive_all,
    send,
    transport_test,
)


class Delivering:
    """A sent message arrives complete and once."""

    @transport_test
    async def test_a_message_arrives_as_it_was_sent(self, s: Server) -> None:
        async with s.open() as one:
            sent = envelope(
                s,
                7,
                subject="täsks.ädd 😀",
                priority=3,
                attempt=2,
                max_deaths=5,
                expires=1_900_000_000.5,
                unique="a key: with signs/é",
                on_conflict="return",
                traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                headers={"timeout": "2.5", "tenant": 'ünïcode, and a comma; "quotes"'},
            )
            await one.send([sent])
            (arrival,) = await receive(one)
            assert read(arrival) == sent
            await one.accept([arrival])

    @transport_test
    async def test_a_body_of_bytes_arrives_as_it_was_sent(self, s: Server) -> None:
        async with s.open() as one:
            body = Body(MESSAGEPACK, bytes(range(256)) * 10)
            await one.send([envelope(s, body=body), envelope(s, body=Body(MESSAGEPACK, b""))])
            found = await receive_all(one, 2)
            assert [read(a).body for a in found] == [body, Body(MESSAGEPACK, b"")]

    @transport_test
    async def test_a_large_body_arrives(self, s: Server) -> None:
        async with s.open() as one:
            data = b'{"args":["' + b"x" * 900_000 + b'"],"kwargs":{}}'
            await one.send([envelope(s, body=Body("application/json", data))])
            (arrival,) = await receive(one)
            assert arrival.data == data
            await one.accept([arrival])

    @transport_test
    async def test_a_body_over_the_servers_limit_is_refused_and_nothing_is_sent(
        self, s: Server
    ) -> None:
        async with s.open() as one:
            large = envelope(s, body=Body("application/json", b"1" * (one.max_body_bytes + 1)))
            with pytest.raises(MessageTooLarge):
                await one.send([envelope(s), large])
            assert await is_empty(one)

    @transport_test
    async def test_messages_of_a_lane_arrive_in_order(self, s: Server) -> None:
        async with s.open() as one:
            sent = await send(one, s, 150) + await send(one, s, 150)
            assert ids(await receive_all(one, 300)) == sent

    @transport_test
    async def test_each_lane_gives_its_own(self, s: Server) -> None:
        async with s.open() as one:
            (io,) = await send(one, s, 1)
            (cpu,) = await send(one, s, 1, kind="cpu")
            (mail,) = await send(one, s, 1, queue="mail")
            (without_kind,) = await send(one, s, 1, kind="")
            lanes = {IO: io, CPU: cpu, Lane("mail", "io"): mail, Lane("default", ""): without_kind}
            for lane, job in lanes.items():
                (arrival,) = await receive(one, lane)
                assert (arrival.lane, ids([arrival])) == (lane, [job])
                await one.accept([arrival])

    @transport_test
    async def test_names_of_queues_may_hold_any_sign(self, s: Server) -> None:
        names = ["a b", "a.b", "a*", "a>", "a/b", "é", "A", "a:b", "x" * 200]
        async with s.open() as one:
            for queue in names:
                await send(one, s, 1, queue=queue)
            for queue in names:
                (arrival,) = await receive(one, Lane(queue, "io"))
                assert arrival.lane.queue == read(arrival).queue == queue
                await one.accept([arrival])

    @transport_test
    async def test_nothing_is_received_by_two(self, s: Server) -> None:
        async with s.open() as one, s.open() as other:
            sent = await send(one, s, 60)
            found: list[str] = []
            while len(found) < 60:
                for who in (one, other):
                    new = await who.receive({IO: 7}, 0.2)
                    await who.accept(new)
                    found += ids(new)
            assert sorted(found) == sorted(sent)
            assert await is_empty(one)

    @transport_test
    async def test_purging_drops_the_waiting_messages_of_all_lanes_of_a_queue(
        self, s: Server
    ) -> None:
        async with s.open() as one:
            await send(one, s, 3)
            await send(one, s, 2, kind="cpu")
            (other,) = await send(one, s, 1, queue="mail")
            await one.purge("default")
            assert await is_empty(one)
            assert await is_empty(one, CPU)
            assert ids(await receive_all(one, 1, Lane("mail", "io"))) == [other]

    @transport_test
    async def test_purging_an_unknown_queue_has_no_effect(self, s: Server) -> None:
        async with s.open() as one:
            await one.purge("never")

    @transport_test
    async def test_removing_a_queue_drops_the_messages_of_all_its_lanes(self, s: Server) -> None:
        async with s.open() as one:
            await send(one, s, 3)
            await send(one, s, 2, kind="cpu")
            (kept,) = await send(one, s, 1, queue="mail")
            await one.remove("default")
            await one.remove("default")
        async with s.open() as other:
            assert await is_empty(other)
            assert await is_empty(other, CPU)
            assert ids(await receive_all(other, 1, Lane("mail", "io"))) == [kept]
            (again,) = await send(other, s, 1)
            assert ids(await receive_all(other, 1)) == [again], "it can be used again"


class Acknowledging:
    """A message is delivered again unless it was accepted."""

    @transport_test
    async def test_an_accepted_message_is_not_redelivered(self, s: Server) -> None:
        async with s.open() as one:
            await send(one, s, 3)
            await receive_all(one, 3)
        async with s.open() as again:
            assert await is_empty(again)

    @transport_test
    async def test_a_message_that_was_not_accepted_is_redelivered_after_close(
        self, s: Server
    ) -> None:
        async with s.open() as one:
            sent = await send(one, s, 3)
            found = await receive(one)
            assert len(found) > 0
        async with s.open() as again:
            assert sorted(ids(await receive_all(again, 3))) == sorted(sent)

    @transport_test
    async def test_a_released_message_is_redelivered_to_any_receiver(self, s: Server) -> None:
        async with s.open() as one, s.open() as other:
            (job,) = await send(one, s, 1)
            await one.release(await receive(one))
            (arrival,) = await receive(other)
            assert ids([arrival]) == [job]
            await other.accept([arrival])

    @transport_test
    async def test_accepting_twice_is_fine(self, s: Server) -> None:
        async with s.open() as one:
            await send(one, s, 1)
            found = await receive(one)
            await one.accept(found)
            await one.accept(found)
            (job,) = await send(one, s, 1)
            assert ids(await receive_all(one, 1)) == [job]

    @transport_test
    async def test_closing_twice_is_fine(self, s: Server) -> None:
        async with s.open() as one:
            await send(one, s, 1)
            await one.close()
            await one.close()
