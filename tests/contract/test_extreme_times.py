"""Jobs with times beyond every calendar, as other programs may write them."""

from __future__ import annotations

import asyncio

import pytest

from umbel.backends import JobFilter
from umbel.messages import State, Succeeded
from umbel.testing import Adapters
from umbel.testing.actions import FULL_DEMAND, RESULT, claim, envelope, kill, register, settle

FAR = 5.7e11
"""A time in the year 20000."""
TIMES: dict[str, dict[str, float]] = {
    "infinite expires": {"expires": float("inf")},
    "expires in the year 20000": {"expires": FAR},
    "infinite past not_before": {"not_before": float("-inf")},
    "created in the year 20000": {"created": FAR},
    "infinite created": {"created": float("inf")},
}


@pytest.mark.parametrize("times", [*TIMES])
@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis_store"])
def test_jobs_with_extreme_times_run_are_recovered_and_pruned_like_others(
    store: str, times: str, request: pytest.FixtureRequest
) -> None:
    backend = request.getfixturevalue(store)

    async def scenario(b: Adapters) -> None:
        odd, plain = envelope(b, **TIMES[times]), envelope(b)
        await b.broker.publish([odd, plain])
        dead = await register(b)
        assert {one.id for one in await claim(b, dead)} == {odd.id, plain.id}
        await kill(b, dead)
        assert {*await b.broker.recover()} == {odd.id, plain.id}
        owner, taken = await register(b), []
        async with asyncio.timeout(40):
            while len(taken) < 2:
                taken += await b.broker.fetch(["default"], FULL_DEMAND, owner, 1.0)
        for one in taken:
            assert await settle(b, one, Succeeded(RESULT)) == []
        found = await b.records.search(JobFilter(states=(State.SUCCEEDED,)))
        assert {one.id for one in found} == {odd.id, plain.id}
        assert (await b.records.find(odd.id)).state is State.SUCCEEDED
        assert await b.records.prune(older_than=0.0, keep=10, limit=100) == 2
        assert await b.records.search(JobFilter()) == []

    async def run() -> None:
        async with backend() as b:
            await scenario(b)

    asyncio.run(run())


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis_store"])
def test_a_job_that_is_never_due_does_not_keep_others_from_their_time(
    store: str, request: pytest.FixtureRequest
) -> None:
    backend = request.getfixturevalue(store)

    async def run() -> None:
        async with backend() as b:
            never = envelope(b, not_before=float("inf"))
            plain = envelope(b)
            await b.broker.publish([never])
            owner = await register(b)
            waiting = asyncio.create_task(b.broker.fetch(["default"], FULL_DEMAND, owner, 30.0))
            await asyncio.sleep(0)
            await b.broker.publish([plain])
            async with asyncio.timeout(40):
                assert [one.id for one in await waiting] == [plain.id]
            assert (await b.records.find(never.id)).state is State.SCHEDULED

    asyncio.run(run())
