"""Redis as the ledger of another broker's messages."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from umbel.backends.blocking import Noted
from umbel.backends.broker import Published, Taken
from umbel.backends.notifier import WakeUpListener
from umbel.backends.offers import Offers
from umbel.backends.redis.broker import LUA, RedisBroker
from umbel.backends.redis.job_rows import delivery, envelope
from umbel.backends.redis.publishing import publish_arguments, publish_step, published
from umbel.backends.redis.scripts import pack
from umbel.backends.redis.values import moment, text
from umbel.errors import LeaseLost
from umbel.messages import Delivery, Envelope


class RedisJobStore(RedisBroker):
    """See ``brokers.port.JobStore`` for what each method promises."""

    @cached_property
    def _offers(self) -> Offers:
        return Offers()

    def _offered(self, one: Envelope, fence: int) -> Envelope:
        self._offers.make(one.id, fence, one.queue)
        return one

    async def note(self, envelopes: Sequence[Envelope]) -> list[Published]:
        if not envelopes:
            return []
        # Nothing is handed over here: whoever has received a message notes it to have it itself.
        arguments = publish_arguments(envelopes, "sent")
        return _noted(envelopes, await self._run("publish", arguments))

    def note_now(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        with self.noting(envelopes, timeout) as noted:
            return noted()

    @contextmanager
    def noting(self, envelopes: Sequence[Envelope], timeout: float) -> Iterator[Noted]:
        script, arguments = publish_step(envelopes, "sent")
        with self._database.direct.ask(script, self._root, arguments, timeout) as asked:
            yield lambda: _noted(envelopes, asked.answer())

    async def unsent(self, queues: Sequence[str], limit: int, wait: float) -> list[Envelope]:
        until = self._clock.monotonic() + wait
        waiter = f"relay:{self._listener.hands.token}" if wait > 0 else ""
        with self._listening(queues) as (ear, _):
            while True:
                ear.clear()
                arguments = pack(limit, [*queues], waiter)
                more, due, rows = await self._run("unsent", arguments)
                if rows:
                    return [self._offered(envelope(row, self._namespace), row[1]) for row in rows]
                if more:
                    continue
                left = until - self._clock.monotonic()
                if left <= 0:
                    return []
                await self._sleep(ear, left, moment(due))

    async def sent(self, jobs: Sequence[str]) -> None:
        await self._run("sent", pack(*(part for o in self._offers.redeem(jobs) for part in o)))

    async def take(
        self, jobs: Mapping[str, str], owner: str, unnoted: Sequence[Envelope] = ()
    ) -> Taken:
        await self.note(unnoted)
        asked = [part for pair in jobs.items() for part in pair]
        answer = await self._run("take", pack(owner, *asked))
        if not answer[0]:
            raise LeaseLost(f"incarnation {owner} is not enlisted")
        _, rows, unknown, claimed = answer
        found = [delivery(row, self._namespace, owner, claimed) for row in rows]
        return Taken(found, [text(job) for job in unknown])

    async def stand_by(
        self, queues: Sequence[str], owner: str, wait: float, other: Future[Any]
    ) -> list[Delivery]:
        until = self._clock.monotonic() + wait
        with self._listening(()) as (ear, ticket), _ringing(other, ear):
            while not other.done() and (left := until - self._clock.monotonic()) > 0:
                ear.clear()
                if self._hears() and (found := await self._begin_standing(queues, owner, ticket)):
                    return found
                if not other.done():
                    await self._sleep(ear, left, None)
                if handed := self._handed(ticket, owner):
                    return handed
            return await self._stand_down(owner, ticket)

    async def _begin_standing(
        self, queues: Sequence[str], owner: str, ticket: str
    ) -> list[Delivery]:
        """Stand by with a ticket; what was handed over before, and not heard of, is given first."""
        hands = self._listener.hands
        heard = hands.heard(owner)
        asked = pack(owner, [*queues], hands.token, heard, ticket)
        enlisted, *given = await self._run("stand_by", asked)
        if not enlisted:
            raise LeaseLost(f"incarnation {owner} is not enlisted")
        hands.forget(owner, heard)
        return [delivery(row, self._namespace, owner, given[0]) for row in given[1:]]

    async def recall(self, lanes: Sequence[tuple[str, str]]) -> int:
        recalled = 0
        for lane in lanes:
            looked = 1
            while looked:  # in portions: a queue may be long
                found, looked = await self._run("recall", pack(*lane))
                recalled += found
        return recalled

    def unsend_now(self, jobs: Sequence[str], timeout: float) -> None:
        self._database.direct.run(LUA["unsend"], self._root, [pack(*jobs)], timeout)

    def recall_now(self, lanes: Sequence[tuple[str, str]], timeout: float) -> int:
        recalled, until = 0, self._clock.monotonic() + timeout
        for lane in lanes:
            looked = 1
            while looked:
                left = until - self._clock.monotonic()
                run = self._database.direct.run
                found, looked = run(LUA["recall"], self._root, [pack(*lane)], left)
                recalled += found
        return recalled


@contextmanager
def _ringing(other: Future[Any], ear: WakeUpListener) -> Iterator[None]:
    """Whoever listens hears of the other's end. It may outlast many who do."""

    def ring(_: Future[Any]) -> None:
        ear.ring("")

    other.add_done_callback(ring)
    try:
        yield
    finally:
        other.remove_done_callback(ring)


def _noted(envelopes: Sequence[Envelope], answer: Sequence[Any]) -> list[Published]:
    """What was sent has its own id, whoever else holds its key."""
    return [
        Published(one.id, existing=found.existing, handed=found.handed)
        for one, found in zip(envelopes, published(envelopes, answer), strict=True)
    ]
