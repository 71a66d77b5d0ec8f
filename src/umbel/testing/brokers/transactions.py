"""Publishing inside the caller's own transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from umbel.errors import DuplicateJob, UnknownJob
from umbel.testing.acts import PATIENCE, enlist, envelope, publish, take, take_one
from umbel.testing.backend import Backend, story


class ChangeOfMind(Exception):
    """What makes a caller roll back."""


def _required(opener: Callable[[], Any] | None) -> Callable[[], Any]:
    if opener is None:
        pytest.skip("there is no connection beside the adapters' own")
    return opener


class Transactions:
    """``within``: the jobs share the fate of what the caller wrote."""

    @story("transactional")
    async def test_a_job_published_within_a_transaction_exists_when_it_commits(
        self, b: Backend
    ) -> None:
        sent = envelope(b)
        async with _required(b.transaction)() as connection:
            await b.broker.publish([sent], within=connection)
        assert (await take_one(b, await enlist(b))).id == sent.id

    @story("transactional", "records")
    async def test_a_job_published_within_a_transaction_never_existed_when_it_rolls_back(
        self, b: Backend
    ) -> None:
        sent = envelope(b)
        with suppress(ChangeOfMind):
            async with _required(b.transaction)() as connection:
                await b.broker.publish([sent], within=connection)
                raise ChangeOfMind
        with pytest.raises(UnknownJob):
            await b.records.find(sent.id)
        assert await take(b, await enlist(b)) == []

    @story("transactional")
    async def test_nobody_fetches_a_job_before_its_transaction_commits(self, b: Backend) -> None:
        owner = await enlist(b)
        async with _required(b.transaction)() as connection:
            await b.broker.publish([envelope(b)], within=connection)
            assert await take(b, owner) == []
        assert len(await take(b, owner)) == 1

    @story("transactional")
    async def test_the_callers_commit_wakes_a_waiting_fetch(self, b: Backend) -> None:
        async with b.another() as other:
            waiting = asyncio.create_task(take(other, await enlist(other), wait=PATIENCE))
            sent = envelope(b)
            async with _required(b.transaction)() as connection:
                await b.broker.publish([sent], within=connection)
            assert [one.id for one in await waiting] == [sent.id]

    @story("transactional")
    async def test_sync_code_publishes_within_its_transaction(self, b: Backend) -> None:
        kept, dropped = envelope(b), envelope(b)
        with _required(b.sync_transaction)() as connection:
            b.broker.publish_within([kept], connection)
        with suppress(ChangeOfMind), _required(b.sync_transaction)() as connection:
            b.broker.publish_within([dropped], connection)
            raise ChangeOfMind
        assert (await take_one(b, await enlist(b))).id == kept.id

    @story("transactional", "unique")
    async def test_a_refused_batch_leaves_nothing_in_a_transaction_that_commits_all_the_same(
        self, b: Backend
    ) -> None:
        holder = await publish(b, unique="only")
        batch = [envelope(b), envelope(b, unique="only")]
        async with _required(b.transaction)() as connection:
            with pytest.raises(DuplicateJob):
                await b.broker.publish(batch, within=connection)
        assert (await take_one(b, await enlist(b))).id == holder.id
