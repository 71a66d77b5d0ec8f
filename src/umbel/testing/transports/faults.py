"""Faults: connections break, and queues are deleted. The transport recovers by itself."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from umbel.backends import Lane, Transport
from umbel.errors import Unavailable
from umbel.testing.transports.server import (
    IO,
    SOON,
    Server,
    envelope,
    ids,
    receive,
    receive_all,
    send,
    transport_test,
)


async def send_surely(transport: Transport, server: Server, count: int) -> list[str]:
    """Send messages again until they are confirmed."""
    made = [envelope(server, number) for number in range(count)]
    while True:
        try:
            await transport.send(made)
            return [one.id for one in made]
        except Unavailable:
            await asyncio.sleep(0.05)


async def receive_surely(transport: Transport, wanted: list[str]) -> set[str]:
    """Receive until all of these messages have arrived, some maybe twice."""
    found: set[str] = set()
    while not found >= set(wanted):
        try:
            new = await transport.receive({IO: 100}, SOON)
            await transport.accept(new)
            found |= set(ids(new))
        except Unavailable:
            await asyncio.sleep(0.05)
    return found


class Faults:
    """No confirmed message is lost, and no process must be restarted."""

    @transport_test
    async def test_sending_goes_on_after_a_cut(self, s: Server) -> None:
        async with s.open() as one:
            first = await send(one, s, 3)
            await s.cut()
            second = await send_surely(one, s, 3)
            async with s.open() as other:
                await receive_surely(other, first + second)

    @transport_test
    async def test_a_message_that_was_not_accepted_is_redelivered_after_a_cut(
        self, s: Server
    ) -> None:
        async with s.open() as one, s.open() as sender:
            sent = await send(sender, s, 3)
            await receive(one)
            await s.cut()
            await receive_surely(one, sent)

    @transport_test
    async def test_a_waiting_receiver_survives_a_cut(self, s: Server) -> None:
        async with s.open() as one, s.open() as sender:
            await send(sender, s, 1)
            await receive_all(one, 1)
            waiting = asyncio.create_task(_patient(one))
            await asyncio.sleep(0.2)
            await s.cut()
            sent = await send_surely(sender, s, 2)
            async with asyncio.timeout(30):
                found = await waiting
            while not {*found} >= {*sent}:
                found |= await _patient(one)

    @transport_test
    async def test_accepting_after_a_cut_is_harmless(self, s: Server) -> None:
        async with s.open() as one, s.open() as sender:
            sent = await send(sender, s, 2)
            found = await receive(one)
            await s.cut()
            await asyncio.sleep(0.1)
            with suppress(Unavailable):
                await one.accept(found)
            sent += await send_surely(sender, s, 1)
            await receive_surely(one, sent[-1:])

    @transport_test
    async def test_a_deleted_lane_is_created_again_and_reported(self, s: Server) -> None:
        async with s.open() as one, s.open() as sender:
            await send(sender, s, 1)
            await receive_all(one, 1)
            await send(sender, s, 2)
            await s.drop(IO)
            sent = await send_surely(sender, s, 2)
            await receive_surely(one, sent)
            assert s.lost.count("default") >= 2

    @transport_test
    async def test_a_created_lane_is_reported_once(self, s: Server) -> None:
        async with s.open() as one, s.open() as other:
            await send(one, s, 1, queue="new")
            await one.receive({Lane("new", "io"): 1}, 0.0)
            await other.receive({Lane("new", "io"): 1}, 0.0)
            assert s.lost == ["new"]

    @transport_test
    async def test_it_checks_its_server(self, s: Server) -> None:
        async with s.open() as one:
            await one.check()


async def _patient(transport: Transport) -> set[str]:
    while True:
        try:
            found = await transport.receive({IO: 10}, 30)
        except Unavailable:
            await asyncio.sleep(0.05)
            continue
        await transport.accept(found)
        if found:
            return set(ids(found))
