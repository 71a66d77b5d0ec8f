"""NATS: a reply is never a command to the server, and a large result is replaced by its size."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psutil
import pytest

pytest.importorskip("nats")

from local_servers import PORTS
from nats_transports import nats_corner

from chaos.proxy import Proxy
from umbel.backends.nats.stream_names import stream_of
from umbel.messages import JSON, Body, Finish, State
from umbel.messages.documents import ReplyRequest
from umbel.testing.transports import OpenServer, Server
from umbel.testing.transports.replies import receive_reply, reply
from umbel.testing.transports.server import IO, ids, read, receive_all, send, transport_test


def count_connections() -> int:
    """Return how many connections this process has to the server."""
    found = psutil.Process().net_connections("tcp")
    return sum(one.raddr != () and one.raddr.port == PORTS["nats"] for one in found)


class TestNatsReplies:
    """Replies through a proxy, as in the suite."""

    @pytest.fixture
    def server(self) -> Iterator[OpenServer]:
        proxy = Proxy(PORTS["nats"], seed=0)
        yield lambda: nats_corner(proxy)
        proxy.close()

    @transport_test
    async def test_a_reply_address_is_not_a_command_to_the_server(self, s: Server) -> None:
        async with s.open() as one, s.reply_client() as reply_client:
            sent = await send(one, s, 1)
            stream = stream_of(s.namespace, IO).name
            commands = [f"$JS.API.STREAM.{what}.{stream}" for what in ("DELETE", "PURGE")]
            for command in commands:
                await one.reply([reply(s, ReplyRequest(command, "q"))])
            await one.reply([reply(s, ReplyRequest(reply_client.address, "q"))])
            await receive_reply(reply_client)  # the server has read all that came before
            assert ids(await receive_all(one, 1)) == sent

    @transport_test
    async def test_a_reply_says_that_the_result_is_too_large(self, s: Server) -> None:
        async with s.open() as one, s.reply_client() as reply_client:
            large = Finish(State.SUCCEEDED, Body(JSON, b'"' + b"x" * 1_048_574 + b'"'))
            await one.reply([reply(s, ReplyRequest(reply_client.address, "q"), large)])
            async with asyncio.timeout(10):
                found = read(await reply_client.receive())
            assert found.headers["state"] == "succeeded"
            assert found.headers["reason"].startswith(
                "data: 1,048,576 bytes, but the limit is 1,000,000"
            )
            assert found.body.data == b"null"

    @transport_test
    async def test_without_replies_there_is_no_connection_for_them(self, s: Server) -> None:
        async with s.open() as one:
            await send(one, s, 1)
            await receive_all(one, 1)
            before = count_connections()
            await one.reply([])
            assert count_connections() == before
            async with s.reply_client() as reply_client:
                before = count_connections()
                done = Finish(State.SUCCEEDED, Body(JSON, b"1"))
                await one.reply([reply(s, ReplyRequest(reply_client.address, "q"), done)])
                assert count_connections() == before + 1
