"""Documents reach whoever asked for them, over clients that know nothing of us."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from umbel.backends import Reply, Transport
from umbel.errors import Unavailable
from umbel.messages import JSON, MESSAGEPACK, Body, Finish, MessageType, State, fresh_id
from umbel.messages.documents import Asked, addressed, answer, asked_by
from umbel.messages.wire import MEDIA_TYPE, write
from umbel.testing.transports.server import (
    IO,
    SOON,
    Asker,
    Heard,
    Server,
    envelope,
    ids,
    read,
    receive,
    send,
    tale,
)

DONE = Finish(State.SUCCEEDED, Body(JSON, b'{"total":42}'))


def reply(server: Server, asked: Asked, end: Finish = DONE, job: str = "") -> Reply:
    """How a job ended, for somebody who asked."""
    document = answer(job or fresh_id(), "tests.add", server.namespace, end, 1_700_000_000.25)
    return Reply(asked, addressed(document, asked))


async def hear(asker: Asker) -> Heard:
    """What has to come soon."""
    async with asyncio.timeout(SOON):
        return await asker.hear()


async def hear_nothing(asker: Asker) -> bool:
    """Whether nothing comes any more."""
    try:
        async with asyncio.timeout(0.3):
            await asker.hear()
    except TimeoutError:
        return True
    return False


async def reply_until_heard(transport: Transport, replies: list[Reply], asker: Asker) -> Heard:
    """After a cut: answer again for as long as nothing has come."""
    heard = asyncio.ensure_future(hear(asker))
    while not heard.done():
        with suppress(Unavailable):
            await transport.reply(replies)
        await asyncio.wait([heard], timeout=0.2)
    return await heard


class Replies:
    """Whoever asked hears how the job ended; nobody else does."""

    @tale
    async def test_a_document_comes_to_the_address_that_asked_for_it(self, s: Server) -> None:
        async with s.open() as one, s.asker() as asker:
            sent = reply(s, Asked(asker.address, "question 7"))
            await one.reply([sent])
            heard = await hear(asker)
            found = read(heard)
            assert (found.id, found.type, found.subject, found.created) == (
                sent.document.id,
                MessageType.DOCUMENT,
                "tests.add",
                1_700_000_000.25,
            )
            assert found.headers == {"state": "succeeded", "correlationid": "question 7"}
            assert (found.body.content_type, found.body.data) == (JSON, b'{"total":42}')
            assert heard.correlation == "question 7"
            assert await hear_nothing(asker)

    @tale
    async def test_a_reason_arrives_with_every_sign_it_has(self, s: Server) -> None:
        reason = 'data: "ä" does not fit\nline two, 100 % 😀'
        async with s.open() as one, s.asker() as asker:
            await one.reply(
                [reply(s, Asked(asker.address, "q"), Finish(State.BURIED, reason=reason))]
            )
            found = read(await hear(asker))
            assert (found.headers["state"], found.headers["reason"]) == ("buried", reason)

    @tale
    async def test_a_result_of_bytes_arrives_as_it_was(self, s: Server) -> None:
        result = Body(MESSAGEPACK, bytes(range(256)) * 10)
        async with s.open() as one, s.asker() as asker:
            await one.reply([reply(s, Asked(asker.address, "q"), Finish(State.SUCCEEDED, result))])
            assert read(await hear(asker)).body == result

    @tale
    async def test_each_asker_hears_its_own(self, s: Server) -> None:
        async with s.open() as one, s.asker() as first, s.asker() as second:
            mine = [reply(s, Asked(first.address, f"first {n}")) for n in range(20)]
            theirs = [reply(s, Asked(second.address, f"second {n}")) for n in range(20)]
            await one.reply([each for pair in zip(mine, theirs, strict=True) for each in pair])
            for asker, sent in ((first, mine), (second, theirs)):
                heard = [await hear(asker) for _ in sent]
                assert [read(each).id for each in heard] == [each.document.id for each in sent]
                assert [each.correlation for each in heard] == [r.asked.correlation for r in sent]
                assert await hear_nothing(asker)

    @tale
    async def test_an_asker_that_is_gone_is_no_error(self, s: Server) -> None:
        async with s.asker() as left:
            address = left.address
        async with s.open() as one, s.asker() as asker:
            gone, here = Asked(address, "gone"), Asked(asker.address, "here")
            await one.reply([reply(s, gone), reply(s, here)])
            assert (await hear(asker)).correlation == "here"

    @tale
    async def test_an_address_that_is_none_keeps_no_answer_from_others(self, s: Server) -> None:
        wrong = ["a b", "a\r\nb", "a..b", "ä*>", "x" * 5000, "nul\0"]
        async with s.open() as one, s.asker() as asker:
            for address in wrong:
                here = reply(s, Asked(asker.address, repr(address)[:50]))
                await one.reply([reply(s, Asked(address, "q")), here])
                assert (await hear(asker)).correlation == here.asked.correlation
            assert await hear_nothing(asker)

    @tale
    async def test_answering_goes_on_after_a_cut(self, s: Server) -> None:
        async with s.open() as one, s.asker() as asker:
            await one.reply([reply(s, Asked(asker.address, "before"))])
            assert (await hear(asker)).correlation == "before"
            await s.cut()
            after = [reply(s, Asked(asker.address, "after"))]
            assert (await reply_until_heard(one, after, asker)).correlation == "after"

    @tale
    async def test_answers_and_messages_do_not_mix(self, s: Server) -> None:
        async with s.open() as one, s.asker() as asker:
            (before,) = await send(one, s, 1)
            await one.reply([reply(s, Asked(asker.address, "q"))])
            (after,) = await send(one, s, 1)
            assert (await hear(asker)).correlation == "q"
            found: list[str] = []
            while len(found) < 2:
                new = await receive(one)
                await one.accept(new)
                found += ids(new)
            assert found == [before, after]

    @tale
    async def test_a_command_carries_who_asks(self, s: Server) -> None:
        headers = {"replyto": "an.address", "correlationid": "question 7"}
        async with s.open() as one:
            await one.send([envelope(s, headers=headers)])
            (arrival,) = await receive(one)
            found = read(arrival)
            assert asked_by(found.id, found.headers) == Asked("an.address", "question 7")
            await one.accept([arrival])

    @tale
    async def test_a_structured_event_carries_who_asks(self, s: Server) -> None:
        async with s.open() as one:
            sent = envelope(s, headers={"replyto": "an.address"})
            await one.receive({IO: 1}, 0.0)
            await s.put(IO, {}, MEDIA_TYPE, write(sent))
            (arrival,) = await receive(one)
            assert asked_by(sent.id, read(arrival).headers) == Asked("an.address", sent.id)
            await one.accept([arrival])
