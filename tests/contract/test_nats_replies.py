"""NATS: answers obey nobody's orders, and what is too large is told without its data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

pytest.importorskip("nats")

from test_nats import PORT, Proxy, corner

from umbel.backends.nats.stream_names import stream_of
from umbel.messages import JSON, Body, Finish, State
from umbel.messages.documents import Asked
from umbel.testing.transports import Server, Servers
from umbel.testing.transports.replies import hear, reply
from umbel.testing.transports.server import IO, ids, read, receive_all, send, tale


class TestNatsReplies:
    """Through a proxy, as the suite."""

    @pytest.fixture
    def server(self) -> Iterator[Servers]:
        proxy = Proxy(PORT, seed=0)
        yield lambda: corner(proxy)
        proxy.close()

    @tale
    async def test_an_address_is_no_order_to_the_server(self, s: Server) -> None:
        async with s.open() as one, s.asker() as asker:
            sent = await send(one, s, 1)
            stream = stream_of(s.namespace, IO).name
            orders = [f"$JS.API.STREAM.{what}.{stream}" for what in ("DELETE", "PURGE")]
            for order in orders:
                await one.reply([reply(s, Asked(order, "q"))])
            await one.reply([reply(s, Asked(asker.address, "q"))])
            await hear(asker)  # the server has read all that came before
            assert ids(await receive_all(one, 1)) == sent

    @tale
    async def test_a_result_that_is_too_large_is_told_without_it(self, s: Server) -> None:
        async with s.open() as one, s.asker() as asker:
            large = Finish(State.SUCCEEDED, Body(JSON, b'"' + b"x" * 1_048_574 + b'"'))
            await one.reply([reply(s, Asked(asker.address, "q"), large)])
            async with asyncio.timeout(10):
                found = read(await asker.hear())
            assert found.headers["state"] == "succeeded"
            assert found.headers["reason"].startswith("data: 1,048,576 bytes, 1,000,000 can be")
            assert found.body.data == b"null"

    @tale
    async def test_while_nobody_asks_there_is_no_connection_for_answers(self, s: Server) -> None:
        async with s.open() as one:
            await send(one, s, 1)
            await receive_all(one, 1)
            await one.reply([])
            assert one._answerer._link.living is None  # type: ignore[attr-defined]
