"""Leases of entries, and waiting for changes."""

from __future__ import annotations

import asyncio
import time

import pytest

from umbel.backends import Put
from umbel.backends.coordination import MAX_ENTRIES
from umbel.errors import ConfigurationError
from umbel.testing.actions import FAR, LONG_WAIT
from umbel.testing.backend import Adapters, backend_test
from umbel.testing.stores.coordination import entries, revision_of, write

LEASE = 0.3
"""Seconds of a lease that lapses during a test."""
PUSH_TRIES = 3


async def pass_lease(b: Adapters) -> None:
    """Let a lease of ``LEASE`` seconds lapse, without a call of the store."""
    if b.time_travels:
        b.advance(2 * LEASE)
    else:
        await asyncio.sleep(2 * LEASE)


class Leases:
    """Entries under a lease, which is measured by the store's clock."""

    @backend_test()
    async def test_an_entry_says_how_long_its_lease_lasts(self, b: Adapters) -> None:
        await write(b, Put("l/a", b"x", FAR), Put("l/b", b"y"))
        leased, other = (await b.coordination.read("l/")).entries
        assert leased.left is not None
        assert FAR - 60 < leased.left <= FAR
        assert other.left is None

    @backend_test()
    async def test_a_lease_is_more_than_nothing_and_at_most_ten_years(self, b: Adapters) -> None:
        for seconds in (0.0, -1.0, 1e12, float("nan"), float("inf")):
            with pytest.raises(ConfigurationError, match="seconds"):
                Put("l/a", b"", seconds)
        await write(b, Put("l/a", b"", 10 * 366 * 86_400.0))
        assert [*await entries(b, "l/")] == ["l/a"]

    @backend_test()
    async def test_a_lapsed_entry_is_absent(self, b: Adapters) -> None:
        await write(b, Put("l/a", b"x", LEASE), Put("l/b", b"y"), Put("l/c", b"z", FAR))
        await pass_lease(b)
        page = await b.coordination.read("l/", limit=2)
        assert [entry.key for entry in page.entries] == ["l/b", "l/c"]
        assert not page.more, "a lapsed entry is not more"

    @backend_test()
    async def test_a_lapsed_key_can_be_taken_with_the_check_zero(self, b: Adapters) -> None:
        first = await write(b, Put("l/a", b"ann", LEASE), Put("l/b", b"ann", FAR))
        assert await b.coordination.commit({"l/b": 0}, [Put("l/b", b"bob", FAR)]) is None
        await pass_lease(b)
        second = await b.coordination.commit({"l/a": 0}, [Put("l/a", b"bob", FAR)])
        assert second is not None
        assert second > first
        assert await entries(b, "l/") == {"l/a": b"bob", "l/b": b"ann"}

    @backend_test()
    async def test_a_check_of_a_lapsed_entrys_revision_does_not_hold(self, b: Adapters) -> None:
        first = await write(b, Put("l/a", b"ann", LEASE))
        await pass_lease(b)
        assert await b.coordination.commit({"l/a": first}, [Put("c/a", b"late")]) is None
        assert await b.coordination.commit({"l/a": first}, deletes=["l/a"]) is None
        assert await entries(b, "c/") == {}

    @backend_test()
    async def test_a_lapse_changes_the_revision_of_the_section_once(self, b: Adapters) -> None:
        first = await write(b, Put("l/a", b"x", LEASE), Put("l/b"))
        await pass_lease(b)
        lapsed = await revision_of(b, "l/")
        assert lapsed > first
        async with b.another() as other:
            assert await revision_of(other, "l/") == lapsed
        await b.coordination.sweep(100)
        assert await revision_of(b, "l/") == lapsed, "sweeping is no change"
        assert await write(b, Put("m/a")) > lapsed

    @backend_test()
    async def test_a_put_without_a_lease_ends_the_lease(self, b: Adapters) -> None:
        await write(b, Put("l/a", b"x", LEASE))
        await write(b, Put("l/a", b"y"))
        await pass_lease(b)
        (entry,) = (await b.coordination.read("l/")).entries
        assert (entry.value, entry.left) == (b"y", None)

    @backend_test()
    async def test_a_put_with_another_lease_replaces_the_lease(self, b: Adapters) -> None:
        await write(b, Put("l/a", b"x", FAR))
        await write(b, Put("l/a", b"y", LEASE))
        await pass_lease(b)
        assert await entries(b, "l/") == {}

    @backend_test()
    async def test_a_renewed_lease_lasts_from_the_renewal_on(self, b: Adapters) -> None:
        revision = await write(b, Put("l/a", b"x", 60.0))
        assert await b.coordination.renew({"l/a": revision}, FAR) == []
        if b.time_travels:
            b.advance(120.0)
        (entry,) = (await b.coordination.read("l/")).entries
        assert (entry.key, entry.value, entry.revision) == ("l/a", b"x", revision)
        assert entry.left is not None
        assert FAR - 180 < entry.left <= FAR

    @backend_test()
    async def test_a_lease_can_be_shortened(self, b: Adapters) -> None:
        revision = await write(b, Put("l/a", b"x", FAR))
        assert await b.coordination.renew({"l/a": revision}, LEASE) == []
        await pass_lease(b)
        assert await entries(b, "l/") == {}

    @backend_test()
    async def test_a_renewal_is_no_change_and_no_commit(self, b: Adapters) -> None:
        revision = await write(b, Put("l/a", b"x", FAR))
        for _ in range(3):
            assert await b.coordination.renew({"l/a": revision}, FAR) == []
        assert await revision_of(b, "l/") == revision
        assert await b.coordination.commit({"l/a": revision}, [Put("l/a", b"y")]) is not None

    @backend_test()
    async def test_lost_leases_are_named_and_the_others_renewed(self, b: Adapters) -> None:
        old = await write(b, *(Put(f"l/{name}", b"x", FAR) for name in "abcd"))
        await write(b, Put("l/b", b"y", FAR), deletes=["l/c"])
        held = {f"l/{name}": old for name in "abcde"}
        assert sorted(await b.coordination.renew(held, 2 * FAR)) == ["l/b", "l/c", "l/e"]
        left = {entry.key: entry.left for entry in (await b.coordination.read("l/")).entries}
        assert [*left] == ["l/a", "l/b", "l/d"]
        assert (left["l/a"] or 0) > FAR
        assert (left["l/d"] or 0) > FAR
        assert (left["l/b"] or 0) <= FAR, "what another commit wrote is not renewed"

    @backend_test()
    async def test_a_lapsed_lease_cannot_be_renewed(self, b: Adapters) -> None:
        revision = await write(b, Put("l/a", b"x", LEASE))
        await pass_lease(b)
        assert await b.coordination.renew({"l/a": revision}, FAR) == ["l/a"]
        assert await entries(b, "l/") == {}

    @backend_test()
    async def test_an_entry_without_a_lease_is_neither_lost_nor_put_under_one(
        self, b: Adapters
    ) -> None:
        revision = await write(b, Put("l/a", b"x"))
        assert await b.coordination.renew({"l/a": revision}, FAR) == []
        (entry,) = (await b.coordination.read("l/")).entries
        assert (entry.revision, entry.left) == (revision, None)

    @backend_test()
    async def test_renewing_nothing_loses_nothing(self, b: Adapters) -> None:
        assert await b.coordination.renew({}, FAR) == []

    @backend_test()
    async def test_a_sweep_deletes_lapsed_entries_up_to_its_limit(self, b: Adapters) -> None:
        await write(b, *(Put(f"l/{n}", b"x", LEASE) for n in range(5)))
        await write(b, Put("l/kept", b"y"), Put("l/later", b"z", FAR))
        await pass_lease(b)
        swept = [await b.coordination.sweep(2) for _ in range(4)]
        assert swept == [2, 2, 1, 0]
        assert [*await entries(b, "l/")] == ["l/kept", "l/later"]

    @backend_test()
    async def test_a_sweep_of_nothing_deletes_nothing(self, b: Adapters) -> None:
        await write(b, Put("l/a"), Put("l/b", b"", FAR))
        assert await b.coordination.sweep(100) == 0
        assert [*await entries(b, "l/")] == ["l/a", "l/b"]

    @backend_test()
    async def test_many_leases_lapse_together_and_are_swept(self, b: Adapters) -> None:
        await write(b, *(Put(f"l/{n}", b"x", LEASE) for n in range(MAX_ENTRIES)))
        await pass_lease(b)
        assert await entries(b, "l/") == {}
        while await b.coordination.sweep(300):
            pass
        assert await b.coordination.commit({"l/5": 0}, [Put("l/5", b"y")]) is not None
        assert await entries(b, "l/") == {"l/5": b"y"}


class Watching:
    """``changed``: returns when a prefix has another revision than the caller knows."""

    push_seconds = 1.0
    """How soon a change of another process is noticed if the machine is not busy."""

    @backend_test()
    async def test_a_revision_that_is_not_the_present_one_is_told_at_once(
        self, b: Adapters
    ) -> None:
        first = await write(b, Put("w/a"))
        assert await b.coordination.changed({"w/": first - 1}, LONG_WAIT) == {"w/": first}
        assert await b.coordination.changed({"w/": -1}, LONG_WAIT) == {"w/": first}
        assert await b.coordination.changed({"w/": first + 7}, LONG_WAIT) == {"w/": first}
        assert await b.coordination.changed({"none/": 5}, LONG_WAIT) == {"none/": 0}

    @backend_test()
    async def test_nothing_changed_is_an_empty_answer_after_the_wait(self, b: Adapters) -> None:
        first = await write(b, Put("w/a"))
        known = {"w/": first, "none/": 0}
        assert await b.coordination.changed(known, 0) == {}
        begun = time.monotonic()
        assert await b.coordination.changed(known, 0.2) == {}
        assert time.monotonic() - begun >= 0.15

    @backend_test()
    async def test_only_prefixes_that_changed_are_told(self, b: Adapters) -> None:
        first = await write(b, Put("w/a"), Put("x/a"), Put("y/a"))
        second = await write(b, Put("x/a"), Put("y/b"))
        known = {"w/": first, "x/": first, "y/": first, "none/": 0}
        assert await b.coordination.changed(known, LONG_WAIT) == {"x/": second, "y/": second}

    @backend_test()
    async def test_a_prefix_within_a_section_changes_with_its_section(self, b: Adapters) -> None:
        first = await write(b, Put("w/a/b"))
        second = await write(b, Put("w/a/b"))
        assert await b.coordination.changed({"w/a/": first}, LONG_WAIT) == {"w/a/": second}

    @backend_test()
    async def test_a_commit_of_another_process_ends_the_wait_at_once(self, b: Adapters) -> None:
        known = await write(b, Put("w/a"))
        taken = []
        async with b.another() as other:
            for _ in range(PUSH_TRIES):
                waiting = asyncio.create_task(b.coordination.changed({"w/": known}, LONG_WAIT))
                await asyncio.sleep(0.05)  # so that it waits; it need not
                begun = time.monotonic()
                revision = await write(other, Put("w/a"))
                assert await waiting == {"w/": revision}
                taken.append(time.monotonic() - begun)
                known = revision
        assert min(taken) < self.push_seconds, f"nothing but a slow poll ended the waits: {taken}"

    @backend_test()
    async def test_a_delete_of_another_process_ends_the_wait(self, b: Adapters) -> None:
        known = await write(b, Put("w/a"))
        async with b.another() as other:
            waiting = asyncio.create_task(b.coordination.changed({"w/": known}, LONG_WAIT))
            await asyncio.sleep(0.05)
            revision = await write(other, deletes=["w/a"])
            assert await waiting == {"w/": revision}

    @backend_test()
    async def test_the_first_entry_of_a_section_ends_the_wait(self, b: Adapters) -> None:
        async with b.another() as other:
            known = {"w/": 0, "x/": 0}
            waiting = asyncio.create_task(b.coordination.changed(known, LONG_WAIT))
            await asyncio.sleep(0.05)
            revision = await write(other, Put("x/a"))
            assert await waiting == {"x/": revision}

    @backend_test()
    async def test_a_lease_that_lapses_ends_the_wait_although_no_process_sweeps(
        self, b: Adapters
    ) -> None:
        known = await write(b, Put("w/a", b"", LEASE), Put("w/b", b"", FAR))
        found = await b.coordination.changed({"w/": known}, LONG_WAIT)
        assert [*found] == ["w/"]
        assert found["w/"] > known
        page = await b.coordination.read("w/")
        assert ([entry.key for entry in page.entries], page.revision) == (["w/b"], found["w/"])

    @backend_test()
    async def test_a_lease_renewed_during_the_wait_ends_it_when_it_lapses_at_last(
        self, b: Adapters
    ) -> None:
        async with b.another() as other:
            known = await write(other, Put("w/a", b"", 3 * LEASE))
            waiting = asyncio.create_task(b.coordination.changed({"w/": known}, LONG_WAIT))
            await asyncio.sleep(0.05)
            await other.coordination.renew({"w/a": known}, 4 * LEASE)
            assert (await waiting)["w/"] > known
            assert await entries(b, "w/") == {}, "it ended before the lease lapsed"

    @backend_test()
    async def test_a_renewal_does_not_end_the_wait(self, b: Adapters) -> None:
        known = await write(b, Put("w/a", b"", FAR))
        async with b.another() as other:
            waiting = asyncio.create_task(b.coordination.changed({"w/": known}, 0.3))
            await asyncio.sleep(0.05)
            assert await other.coordination.renew({"w/a": known}, FAR) == []
            assert await waiting == {}

    @backend_test()
    async def test_a_lapse_is_told_once_to_a_caller_that_has_read_it(self, b: Adapters) -> None:
        known = await write(b, Put("w/a", b"", LEASE))
        await pass_lease(b)
        page = await b.coordination.read("w/")
        assert await b.coordination.changed({"w/": page.revision}, 0.1) == {}
        assert await b.coordination.changed({"w/": known}, LONG_WAIT) == {"w/": page.revision}
        async with b.another() as other:
            assert await other.coordination.changed({"w/": page.revision}, 0.1) == {}
            await other.coordination.sweep(100)
            assert await b.coordination.changed({"w/": page.revision}, 0.1) == {}

    @backend_test()
    async def test_an_answer_can_be_passed_to_the_next_call(self, b: Adapters) -> None:
        await write(b, Put("w/a", b"", LEASE), Put("x/a"))
        await pass_lease(b)
        known = await b.coordination.changed({"w/": -1, "x/": -1}, LONG_WAIT)
        assert {*known} == {"w/", "x/"}
        assert await b.coordination.changed(known, 0.1) == {}

    @backend_test()
    async def test_a_change_between_two_calls_is_told_by_the_next(self, b: Adapters) -> None:
        known = await write(b, Put("w/a"))
        assert await b.coordination.changed({"w/": known}, 0) == {}
        async with b.another() as other:
            revision = await write(other, Put("w/a"))
        assert await b.coordination.changed({"w/": known}, LONG_WAIT) == {"w/": revision}

    @backend_test()
    async def test_every_waiting_call_is_told(self, b: Adapters) -> None:
        known = await write(b, Put("w/a"))
        async with b.another() as other:
            waiting = [
                asyncio.create_task(side.coordination.changed({"w/": known}, LONG_WAIT))
                for side in (b, b, other)
            ]
            await asyncio.sleep(0.05)
            revision = await write(other, Put("w/a"))
            assert await asyncio.gather(*waiting) == [{"w/": revision}] * 3

    @backend_test()
    async def test_changes_stay_in_their_namespace(self, b: Adapters) -> None:
        known = await write(b, Put("w/a"))
        async with b.another(f"{b.namespace}2") as elsewhere:
            waiting = asyncio.create_task(b.coordination.changed({"w/": known}, 0.3))
            await asyncio.sleep(0.05)
            await write(elsewhere, Put("w/a"))
            assert await waiting == {}

    @backend_test()
    async def test_a_call_that_is_cancelled_harms_no_other(self, b: Adapters) -> None:
        known = await write(b, Put("w/a"))
        first, second = (
            asyncio.create_task(b.coordination.changed({"w/": known}, LONG_WAIT)) for _ in range(2)
        )
        await asyncio.sleep(0.05)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        revision = await write(b, Put("w/a"))
        assert await second == {"w/": revision}
