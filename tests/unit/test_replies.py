"""Who asked is remembered while a job runs, within bounds, and told in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from umbel.backends import Reply
from umbel.backends.replies import ReplySender
from umbel.errors import Unavailable, UnknownJob
from umbel.messages import (
    JSON,
    Attempt,
    Body,
    Delivery,
    Envelope,
    Lease,
    Record,
    Settlement,
    Succeeded,
    fresh_id,
)
from umbel.messages.documents import ReplyRequest
from umbel.testing import FakeClock

MOST = 10_000


def delivery(fence: int = 1, job: str = "", **headers: str) -> Delivery:
    job = job or fresh_id()
    body = Body(JSON, b"{}")
    return Delivery(
        envelope=Envelope(id=job, subject="tests.add", body=body, headers=headers),
        lease=Lease(job, "me", fence),
    )


def done(found: Delivery) -> Settlement:
    story = Attempt(1, "me", 0.0, 1.0, "succeeded")
    return Settlement(lease=found.lease, outcome=Succeeded(Body(JSON, b"42")), attempt=story)


class Post:
    """Keeps what was sent; may be out of reach for a while."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.away = 0
        self.unsendable: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()

    async def send(self, replies: Sequence[Reply]) -> None:
        await self.gate.wait()
        if self.away:
            self.away -= 1
            raise Unavailable("away")
        if self.unsendable & {one.asked.address for one in replies}:
            raise ValueError("year 20000 is out of range")
        self.sent += [one.asked.address for one in replies]


async def nowhere(job: str) -> Record:
    raise UnknownJob(job)


def tell(told: Callable[[ReplySender, Post], Awaitable[None]]) -> None:
    async def main() -> None:
        post = Post()
        answers = ReplySender(post.send, nowhere, namespace="umbel", clock=FakeClock())
        async with asyncio.timeout(30):
            await told(answers, post)

    asyncio.run(main())


def test_no_background_task_is_started_while_no_client_asks() -> None:
    async def told(answers: ReplySender, post: Post) -> None:
        found = [delivery() for _ in range(10)]
        answers.remember(found)
        answers.reply([done(one) for one in found], [])
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await answers.close()

    tell(told)


def test_the_newest_questions_are_remembered() -> None:
    async def told(answers: ReplySender, post: Post) -> None:
        found = [delivery(replyto=f"a{number}") for number in range(MOST + 1)]
        answers.remember(found)
        answers.reply([done(found[0]), done(found[1]), done(found[-1])], [])
        await answers.close()
        assert post.sent == ["a1", f"a{MOST}"]

    tell(told)


def test_what_was_lost_is_forgotten_and_its_next_lease_is_not() -> None:
    async def told(answers: ReplySender, post: Post) -> None:
        job = fresh_id()
        first = delivery(1, job, replyto="here")
        second = delivery(2, job, replyto="here")
        answers.remember([first, second])
        answers.forget([first.lease])
        answers.reply([done(first)], [])
        await answers.close()
        assert post.sent == []
        answers.reply([done(second)], [])
        await answers.close()
        assert post.sent == ["here"]

    tell(told)


def test_an_answer_is_given_once() -> None:
    async def told(answers: ReplySender, post: Post) -> None:
        found = delivery(replyto="here")
        answers.remember([found])
        answers.reply([done(found)], [])
        answers.reply([done(found)], [])
        await answers.close()
        assert post.sent == ["here"]

    tell(told)


def test_replies_are_sent_in_the_background_and_a_failed_one_stops_no_other() -> None:
    async def told(answers: ReplySender, post: Post) -> None:
        first, second = delivery(replyto="first"), delivery(replyto="second")
        answers.remember([first, second])
        post.gate.clear()
        post.away = 1
        answers.reply([done(first)], [])
        await asyncio.sleep(0)  # the first is on its way
        answers.reply([done(second)], [])
        answers.reply_from_record("gone", ReplyRequest("nobody", "q"))
        post.gate.set()
        await answers.close()
        assert post.sent == ["second"]

    tell(told)


def test_closing_does_not_wait_for_a_server_that_is_silent() -> None:
    async def told(answers: ReplySender, post: Post) -> None:
        found = delivery(replyto="here")
        answers.remember([found])
        post.gate.clear()
        answers.reply([done(found)], [])
        await answers.close()
        await answers.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert post.sent == []

    tell(told)


def test_an_address_that_is_too_long_is_none() -> None:
    async def told(answers: ReplySender, post: Post) -> None:
        found = [delivery(replyto="x" * 1025), delivery(replyto=""), delivery(replyto="x" * 1024)]
        answers.remember(found)
        answers.reply([done(one) for one in found], [])
        await answers.close()
        assert post.sent == ["x" * 1024]

    tell(told)


def test_an_answer_that_cannot_be_sent_keeps_no_other_answer_back() -> None:
    async def told(answers: ReplySender, post: Post) -> None:
        post.unsendable = {"a7"}
        found = [delivery(replyto=f"a{number}") for number in range(20)]
        answers.remember(found)
        answers.reply([done(one) for one in found], [])
        await answers.close()
        assert post.sent == [f"a{number}" for number in range(20) if number != 7]

    tell(told)
