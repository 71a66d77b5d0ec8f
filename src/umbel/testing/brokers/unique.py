"""Unique keys: one live job each."""

from __future__ import annotations

import asyncio

import pytest

from umbel.backends import Published
from umbel.errors import DuplicateJob
from umbel.messages import Retry, State, Succeeded
from umbel.testing.acts import (
    FAILURE,
    FAR,
    RESULT,
    enlist,
    envelope,
    publish,
    running,
    settle,
    take,
    take_one,
)
from umbel.testing.backend import Backend, story


class UniqueKeys:
    """What a second publisher of a key meets."""

    @story("unique")
    async def test_a_second_job_with_a_live_key_is_refused_by_name(self, b: Backend) -> None:
        holder = await publish(b, unique="only")
        with pytest.raises(DuplicateJob) as caught:
            await publish(b, unique="only")
        assert (caught.value.key, caught.value.existing) == ("only", holder.id)

    @story("unique")
    async def test_a_refused_key_refuses_the_whole_batch(self, b: Backend) -> None:
        await publish(b, unique="only")
        with pytest.raises(DuplicateJob):
            await b.broker.publish([envelope(b), envelope(b, unique="only"), envelope(b)])
        assert len(await take(b, await enlist(b))) == 1

    @story("unique")
    async def test_two_jobs_with_one_key_in_one_batch_are_refused(self, b: Backend) -> None:
        with pytest.raises(DuplicateJob):
            await b.broker.publish([envelope(b, unique="only"), envelope(b, unique="only")])
        assert await take(b, await enlist(b)) == []

    @story("unique")
    async def test_on_conflict_return_gives_the_job_that_is_there(self, b: Backend) -> None:
        holder = await publish(b, unique="only")
        answer = await b.broker.publish([envelope(b, unique="only", on_conflict="return")])
        assert answer == [Published(holder.id, existing=True)]

    @story("unique")
    async def test_on_conflict_return_goes_for_running_jobs_too(self, b: Backend) -> None:
        held = await running(b, unique="only")
        answer = await b.broker.publish([envelope(b, unique="only", on_conflict="return")])
        assert answer == [Published(held.id, existing=True)]

    @story("unique", "records")
    async def test_on_conflict_replace_cancels_the_job_that_waits(self, b: Backend) -> None:
        old = await publish(b, unique="only")
        new = await publish(b, unique="only", on_conflict="replace")
        assert (await b.records.find(old.id)).state is State.CANCELLED
        assert new.id in (await b.records.find(old.id)).reason
        assert (await take_one(b, await enlist(b))).id == new.id

    @story("unique", "records", "delay")
    async def test_on_conflict_replace_cancels_a_scheduled_job(self, b: Backend) -> None:
        old = await publish(b, unique="only", not_before=b.clock.now() + FAR)
        await publish(b, unique="only", on_conflict="replace")
        assert (await b.records.find(old.id)).state is State.CANCELLED

    @story("unique")
    async def test_a_running_job_is_not_replaced(self, b: Backend) -> None:
        held = await running(b, unique="only")
        with pytest.raises(DuplicateJob) as caught:
            await publish(b, unique="only", on_conflict="replace")
        assert caught.value.existing == held.id
        assert await settle(b, held, Succeeded(RESULT)) == []

    @story("unique")
    async def test_repeating_a_unique_publish_under_its_own_id_is_no_conflict(
        self, b: Backend
    ) -> None:
        sent = await publish(b, unique="only")
        assert await b.broker.publish([sent]) == [Published(sent.id, existing=True)]

    @story("unique")
    async def test_a_key_is_free_again_when_its_job_has_finished(self, b: Backend) -> None:
        held = await running(b, unique="only")
        await settle(b, held, Succeeded(RESULT))
        fresh = await publish(b, unique="only")
        assert (await take_one(b, await enlist(b))).id == fresh.id

    @story("unique")
    async def test_a_key_is_free_again_when_its_job_was_cancelled(self, b: Backend) -> None:
        old = await publish(b, unique="only")
        await b.control.cancel([old.id], "not wanted")
        assert (await publish(b, unique="only")).id != old.id

    @story("unique", "delay")
    async def test_a_job_keeps_its_key_while_it_waits_for_a_retry(self, b: Backend) -> None:
        held = await running(b, unique="only")
        await settle(b, held, Retry(FAILURE, FAR))
        with pytest.raises(DuplicateJob):
            await publish(b, unique="only")

    @story("unique")
    async def test_different_keys_do_not_meet(self, b: Backend) -> None:
        await publish(b, unique="one")
        await publish(b, unique="two")
        assert len(await take(b, await enlist(b))) == 2

    @story("unique")
    async def test_a_key_holds_in_its_namespace_only(self, b: Backend) -> None:
        await publish(b, unique="only")
        async with b.another(f"{b.namespace}2") as elsewhere:
            sent = await publish(elsewhere, unique="only")
            assert (await take_one(elsewhere, await enlist(elsewhere))).id == sent.id

    @story("unique")
    async def test_of_many_publishers_at_once_one_gets_the_key(self, b: Backend) -> None:
        async with b.another() as other:
            tries = [
                side.broker.publish([envelope(b, unique="only")])
                for _ in range(10)
                for side in (b, other)
            ]
            answers = await asyncio.gather(*tries, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, DuplicateJob)]
        assert len(refused) == 19, answers
        assert len(await take(b, await enlist(b))) == 1
