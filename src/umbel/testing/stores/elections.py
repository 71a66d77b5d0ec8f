"""Elections: of several candidates one leads, and commits of a former leader are refused."""

from __future__ import annotations

import asyncio

from umbel.backends import Put
from umbel.control import Election
from umbel.testing.actions import FAR
from umbel.testing.backend import Adapters, backend_test
from umbel.testing.stores.coordination import entries
from umbel.testing.stores.entry_leases import LEASE, pass_lease


def candidate(b: Adapters, name: str, seconds: float = FAR) -> Election:
    """Return a candidate of the election of the tests."""
    return Election(b.coordination, "tests", name, seconds=seconds)


class Elections:
    """``Election``: one leader at a time, by the store's clock."""

    @backend_test()
    async def test_the_first_candidate_leads_and_stays_the_leader(self, b: Adapters) -> None:
        ann, bob = candidate(b, "ann"), candidate(b, "bob")
        assert await ann.leader() is None
        assert await ann.campaign()
        assert not await bob.campaign()
        assert await ann.campaign()
        assert [await ann.leader(), await bob.leader()] == ["ann", "ann"]

    @backend_test()
    async def test_of_many_candidates_at_once_one_leads(self, b: Adapters) -> None:
        async with b.another() as other:
            all_of_them = [candidate(side, f"c{n}") for n in range(10) for side in (b, other)]
            found = await asyncio.gather(*(one.campaign() for one in all_of_them))
        assert sum(found) == 1

    @backend_test()
    async def test_another_candidate_leads_when_the_lease_has_lapsed(self, b: Adapters) -> None:
        ann, bob = candidate(b, "ann", LEASE), candidate(b, "bob")
        assert await ann.campaign()
        await pass_lease(b)
        assert await bob.leader() is None
        assert await bob.campaign()
        assert not await ann.campaign()
        assert await ann.leader() == "bob"

    @backend_test()
    async def test_a_commit_of_a_leader_that_was_replaced_has_no_effect(self, b: Adapters) -> None:
        ann, bob = candidate(b, "ann", LEASE), candidate(b, "bob")
        assert await ann.campaign()
        checks = ann.checks
        await pass_lease(b)
        assert await b.coordination.commit(checks, [Put("work/a", b"late")]) is None
        assert await bob.campaign()
        assert await b.coordination.commit(checks, [Put("work/a", b"later")]) is None
        assert await b.coordination.commit(ann.checks, [Put("work/a", b"later")]) is None
        assert await entries(b, "work/") == {}
        assert await b.coordination.commit(bob.checks, [Put("work/a", b"bob")]) is not None

    @backend_test()
    async def test_a_leader_of_which_the_lease_lapsed_may_lead_again(self, b: Adapters) -> None:
        ann = candidate(b, "ann", LEASE)
        assert await ann.campaign()
        before = ann.checks
        await pass_lease(b)
        assert await ann.campaign()
        assert ann.checks != before, "it is another term"

    @backend_test()
    async def test_a_leader_that_resigns_is_replaced_at_once(self, b: Adapters) -> None:
        ann, bob = candidate(b, "ann"), candidate(b, "bob")
        assert await ann.campaign()
        await bob.resign()
        assert await bob.leader() == "ann", "only the leader resigns"
        await ann.resign()
        assert await bob.leader() is None
        assert await bob.campaign()

    @backend_test()
    async def test_elections_of_other_names_and_namespaces_are_separate(self, b: Adapters) -> None:
        assert await candidate(b, "ann").campaign()
        other = Election(b.coordination, "tests/more", "bob", seconds=FAR)
        assert await other.campaign()
        assert await candidate(b, "").leader() == "ann"
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await candidate(elsewhere, "bob").campaign()
