"""Publishing inside the caller's own transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from umbel.errors import DuplicateJob, UnknownJob
from umbel.testing.actions import LONG_WAIT, claim, claim_one, envelope, publish, register
from umbel.testing.backend import Adapters, backend_test


class ChangeOfMind(Exception):
    """Makes a caller roll back."""


def _required(opener: Callable[[], Any] | None) -> Callable[[], Any]:
    if opener is None:
        pytest.skip("there is no connection beside the adapters' own")
    return opener


class Transactions:
    """``within``: the jobs are committed or rolled back with the caller's own writes."""

    @backend_test("transactional")
    async def test_a_job_published_within_a_transaction_exists_when_it_commits(
        self, b: Adapters
    ) -> None:
        sent = envelope(b)
        async with _required(b.transaction)() as connection:
            await b.broker.publish([sent], within=connection)
        assert (await claim_one(b, await register(b))).id == sent.id

    @backend_test("transactional", "records")
    async def test_a_job_published_within_a_transaction_never_existed_when_it_rolls_back(
        self, b: Adapters
    ) -> None:
        sent = envelope(b)
        with suppress(ChangeOfMind):
            async with _required(b.transaction)() as connection:
                await b.broker.publish([sent], within=connection)
                raise ChangeOfMind
        with pytest.raises(UnknownJob):
            await b.records.find(sent.id)
        assert await claim(b, await register(b)) == []

    @backend_test("transactional")
    async def test_a_job_is_not_fetched_before_its_transaction_commits(self, b: Adapters) -> None:
        owner = await register(b)
        async with _required(b.transaction)() as connection:
            await b.broker.publish([envelope(b)], within=connection)
            assert await claim(b, owner) == []
        assert len(await claim(b, owner)) == 1

    @backend_test("transactional")
    async def test_the_callers_commit_wakes_a_waiting_fetch(self, b: Adapters) -> None:
        async with b.another() as other:
            waiting = asyncio.create_task(claim(other, await register(other), wait=LONG_WAIT))
            sent = envelope(b)
            async with _required(b.transaction)() as connection:
                await b.broker.publish([sent], within=connection)
            assert [one.id for one in await waiting] == [sent.id]

    @backend_test("transactional")
    async def test_sync_code_publishes_within_its_transaction(self, b: Adapters) -> None:
        kept, dropped = envelope(b), envelope(b)
        with _required(b.sync_transaction)() as connection:
            b.broker.publish_within([kept], connection)
        with suppress(ChangeOfMind), _required(b.sync_transaction)() as connection:
            b.broker.publish_within([dropped], connection)
            raise ChangeOfMind
        assert (await claim_one(b, await register(b))).id == kept.id

    @backend_test("transactional", "unique")
    async def test_a_refused_batch_leaves_nothing_in_a_transaction_that_commits_all_the_same(
        self, b: Adapters
    ) -> None:
        holder = await publish(b, unique="only")
        batch = [envelope(b), envelope(b, unique="only")]
        async with _required(b.transaction)() as connection:
            with pytest.raises(DuplicateJob):
                await b.broker.publish(batch, within=connection)
        assert (await claim_one(b, await register(b))).id == holder.id
