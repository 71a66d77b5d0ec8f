"""Replies reach the client that asked for them. The clients use the server's own library."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from umbel.backends import Reply, Transport
from umbel.errors import Unavailable
from umbel.messages import JSON, MESSAGEPACK, Body, Finish, MessageType, State, fresh_id
from umbel.messages.documents import (
    ReplyRequest,
    add_correlation,
    find_reply_request,
    make_document,
)
from umbel.messages.wire import MEDIA_TYPE, write
from umbel.testing.transports.server import (
    IO,
    SOON,
    ReceivedMessage,
    ReplyClient,
    Server,
    envelope,
    ids,
    read,
    receive,
    send,
    transport_test,
)

DONE = Finish(State.SUCCEEDED, Body(JSON, b'{"total":42}'))


def reply(server: Server, asked: ReplyRequest, end: Finish = DONE, job: str = "") -> Reply:
    """Return a reply with a job's outcome."""
    document = make_document(
        job or fresh_id(), "tests.add", server.namespace, end, 1_700_000_000.25
    )
    return Reply(asked, add_correlation(document, asked))


async def receive_reply(reply_client: ReplyClient) -> ReceivedMessage:
    """Return the next message, which must arrive soon."""
    async with asyncio.timeout(SOON):
        return await reply_client.receive()


async def gets_no_reply(reply_client: ReplyClient) -> bool:
    """Return whether no more messages arrive."""
    try:
        async with asyncio.timeout(0.3):
            await reply_client.receive()
    except TimeoutError:
        return True
    return False


async def reply_until_received(
    transport: Transport, replies: list[Reply], reply_client: ReplyClient
) -> ReceivedMessage:
    """Send replies again, after a cut connection, until one arrives."""
    received = asyncio.ensure_future(receive_reply(reply_client))
    while not received.done():
        with suppress(Unavailable):
            await transport.reply(replies)
        await asyncio.wait([received], timeout=0.2)
    return await received


class Replies:
    """The client that asked receives the job's outcome; no other client does."""

    @transport_test
    async def test_a_document_comes_to_the_address_that_asked_for_it(self, s: Server) -> None:
        async with s.open() as one, s.reply_client() as reply_client:
            sent = reply(s, ReplyRequest(reply_client.address, "question 7"))
            await one.reply([sent])
            received = await receive_reply(reply_client)
            found = read(received)
            assert (found.id, found.type, found.subject, found.created) == (
                sent.document.id,
                MessageType.DOCUMENT,
                "tests.add",
                1_700_000_000.25,
            )
            assert found.headers == {"state": "succeeded", "correlationid": "question 7"}
            assert (found.body.content_type, found.body.data) == (JSON, b'{"total":42}')
            assert received.correlation == "question 7"
            assert await gets_no_reply(reply_client)

    @transport_test
    async def test_a_reason_arrives_with_every_sign_it_has(self, s: Server) -> None:
        reason = 'data: "ä" does not fit\nline two, 100 % 😀'
        async with s.open() as one, s.reply_client() as reply_client:
            await one.reply(
                [
                    reply(
                        s,
                        ReplyRequest(reply_client.address, "q"),
                        Finish(State.BURIED, reason=reason),
                    )
                ]
            )
            found = read(await receive_reply(reply_client))
            assert (found.headers["state"], found.headers["reason"]) == ("buried", reason)

    @transport_test
    async def test_a_result_of_bytes_arrives_as_it_was(self, s: Server) -> None:
        result = Body(MESSAGEPACK, bytes(range(256)) * 10)
        async with s.open() as one, s.reply_client() as reply_client:
            await one.reply(
                [reply(s, ReplyRequest(reply_client.address, "q"), Finish(State.SUCCEEDED, result))]
            )
            assert read(await receive_reply(reply_client)).body == result

    @transport_test
    async def test_each_client_gets_its_own_replies(self, s: Server) -> None:
        async with s.open() as one, s.reply_client() as first, s.reply_client() as second:
            mine = [reply(s, ReplyRequest(first.address, f"first {n}")) for n in range(20)]
            theirs = [reply(s, ReplyRequest(second.address, f"second {n}")) for n in range(20)]
            await one.reply([each for pair in zip(mine, theirs, strict=True) for each in pair])
            for reply_client, sent in ((first, mine), (second, theirs)):
                received = [await receive_reply(reply_client) for _ in sent]
                assert [read(each).id for each in received] == [each.document.id for each in sent]
                assert [each.correlation for each in received] == [
                    r.asked.correlation for r in sent
                ]
                assert await gets_no_reply(reply_client)

    @transport_test
    async def test_an_asker_that_is_gone_is_no_error(self, s: Server) -> None:
        async with s.reply_client() as left:
            address = left.address
        async with s.open() as one, s.reply_client() as reply_client:
            gone, here = ReplyRequest(address, "gone"), ReplyRequest(reply_client.address, "here")
            await one.reply([reply(s, gone), reply(s, here)])
            assert (await receive_reply(reply_client)).correlation == "here"

    @transport_test
    async def test_an_address_that_is_none_keeps_no_answer_from_others(self, s: Server) -> None:
        wrong = ["a b", "a\r\nb", "a..b", "ä*>", "x" * 5000, "nul\0"]
        async with s.open() as one, s.reply_client() as reply_client:
            for address in wrong:
                here = reply(s, ReplyRequest(reply_client.address, repr(address)[:50]))
                await one.reply([reply(s, ReplyRequest(address, "q")), here])
                assert (await receive_reply(reply_client)).correlation == here.asked.correlation
            assert await gets_no_reply(reply_client)

    @transport_test
    async def test_answering_goes_on_after_a_cut(self, s: Server) -> None:
        async with s.open() as one, s.reply_client() as reply_client:
            await one.reply([reply(s, ReplyRequest(reply_client.address, "before"))])
            assert (await receive_reply(reply_client)).correlation == "before"
            await s.cut()
            after = [reply(s, ReplyRequest(reply_client.address, "after"))]
            assert (await reply_until_received(one, after, reply_client)).correlation == "after"

    @transport_test
    async def test_answers_and_messages_do_not_mix(self, s: Server) -> None:
        async with s.open() as one, s.reply_client() as reply_client:
            (before,) = await send(one, s, 1)
            await one.reply([reply(s, ReplyRequest(reply_client.address, "q"))])
            (after,) = await send(one, s, 1)
            assert (await receive_reply(reply_client)).correlation == "q"
            found: list[str] = []
            while len(found) < 2:
                new = await receive(one)
                await one.accept(new)
                found += ids(new)
            assert found == [before, after]

    @transport_test
    async def test_a_command_carries_its_reply_address(self, s: Server) -> None:
        headers = {"replyto": "an.address", "correlationid": "question 7"}
        async with s.open() as one:
            await one.send([envelope(s, headers=headers)])
            (arrival,) = await receive(one)
            found = read(arrival)
            assert find_reply_request(found.id, found.headers) == ReplyRequest(
                "an.address", "question 7"
            )
            await one.accept([arrival])

    @transport_test
    async def test_a_structured_event_carries_its_reply_address(self, s: Server) -> None:
        async with s.open() as one:
            sent = envelope(s, headers={"replyto": "an.address"})
            await one.receive({IO: 1}, 0.0)
            await s.put(IO, {}, MEDIA_TYPE, write(sent))
            (arrival,) = await receive(one)
            assert find_reply_request(sent.id, read(arrival).headers) == ReplyRequest(
                "an.address", sent.id
            )
            await one.accept([arrival])
