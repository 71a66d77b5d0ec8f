"""Coordination: entries, commits and their revisions."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

import pytest

from umbel.backends import CANCELLATIONS, Coordination, Entry, Put
from umbel.backends.coordination import MAX_ENTRIES, MAX_KEY_BYTES, MAX_VALUE_BYTES
from umbel.errors import BadMessage, ConfigurationError, UnknownJob
from umbel.messages import Envelope, State, Succeeded
from umbel.testing.actions import (
    FAR,
    LONG_WAIT,
    RESULT,
    claim,
    claim_one,
    envelope,
    ids,
    key_taken,
    publish,
    publish_and_settle,
    register,
    settle,
)
from umbel.testing.backend import Adapters, backend_test


async def entries(b: Adapters, prefix: str) -> dict[str, bytes]:
    """Return the values of all entries with a prefix, by key."""
    return {entry.key: entry.value for entry in await read_all(b.coordination, prefix)}


async def read_all(role: Coordination, prefix: str, limit: int = MAX_ENTRIES) -> list[Entry]:
    """Read all pages."""
    page = await role.read(prefix, limit=limit)
    found = [*page.entries]
    while page.more:
        page = await role.read(prefix, after=page.entries[-1].key, limit=limit)
        found += page.entries
    return found


async def write(b: Adapters, *puts: Put, deletes: Sequence[str] = ()) -> int:
    """Write entries without checks; return the revision of the commit."""
    revision = await b.coordination.commit({}, puts, deletes)
    assert revision is not None, "a commit without checks did not happen"
    return revision


async def revision_of(b: Adapters, prefix: str) -> int:
    """Return the present revision of a prefix."""
    return (await b.coordination.read(prefix, limit=1)).revision


class Entries:
    """``read``: what was written, by prefix and in pages."""

    @backend_test()
    async def test_at_first_there_is_nothing_and_the_revision_is_zero(self, b: Adapters) -> None:
        page = await b.coordination.read("config/")
        assert (page.entries, page.revision, page.more) == ((), 0, False)

    @backend_test()
    async def test_an_entry_is_read_as_it_was_written(self, b: Adapters) -> None:
        revision = await write(b, Put("config/colour", b"red"))
        page = await b.coordination.read("config/")
        assert page.entries == (Entry("config/colour", b"red", revision, None),)
        assert page.revision == revision
        async with b.another() as other:
            assert await entries(other, "config/") == {"config/colour": b"red"}

    @backend_test()
    async def test_a_page_has_the_time_of_the_store(self, b: Adapters) -> None:
        before = b.clock.now()
        page = await b.coordination.read("config/")
        assert before - 5 <= page.now <= b.clock.now() + 5

    @backend_test()
    async def test_an_entry_written_again_has_its_last_value_and_revision(
        self, b: Adapters
    ) -> None:
        await write(b, Put("config/colour", b"red"))
        last = await write(b, Put("config/colour", b"blue"))
        (entry,) = (await b.coordination.read("config/")).entries
        assert (entry.value, entry.revision) == (b"blue", last)

    @backend_test()
    async def test_values_are_any_bytes(self, b: Adapters) -> None:
        values = {
            "v/all": bytes(range(256)),
            "v/empty": b"",
            "v/nul": b"\0\0",
            "v/no text": b"\xff\xfe\x80",
            "v/largest": bytes(range(256)) * (MAX_VALUE_BYTES // 256),
        }
        await write(b, *(Put(key, value) for key, value in values.items()))
        assert await entries(b, "v/") == values

    @backend_test()
    async def test_a_value_that_is_too_large_is_refused_by_name(self, b: Adapters) -> None:
        with pytest.raises(ConfigurationError, match="value of 'v/large'"):
            await write(b, Put("v/large", b"x" * (MAX_VALUE_BYTES + 1)))
        assert await entries(b, "v/") == {}

    @backend_test()
    async def test_a_key_needs_a_section_and_a_name(self, b: Adapters) -> None:
        for key in ("", "plain", "/name", "section/", "a/nul\0"):
            with pytest.raises(ConfigurationError):
                Put(key)
            with pytest.raises(ConfigurationError):
                await b.coordination.commit({}, [Put("config/x")], [key])
        assert await entries(b, "config/") == {}

    @backend_test()
    async def test_a_prefix_needs_a_section(self, b: Adapters) -> None:
        for prefix in ("", "plain", "/name", "config/nul\0", "config/" + "x" * MAX_KEY_BYTES):
            with pytest.raises(ConfigurationError):
                await b.coordination.read(prefix)

    @backend_test()
    async def test_the_longest_key_is_stored_and_a_longer_one_refused(self, b: Adapters) -> None:
        longest = "k/" + "é" * (MAX_KEY_BYTES // 2 - 1)
        await write(b, Put(longest, b"x"), Put("k/z", b"y"))
        assert await entries(b, "k/") == {longest: b"x", "k/z": b"y"}
        page = await b.coordination.read("k/", after="k/z")
        assert [entry.key for entry in page.entries] == [longest]
        with pytest.raises(ConfigurationError, match="at most"):
            Put(longest + "x")

    @backend_test()
    async def test_keys_are_in_the_order_of_their_bytes(self, b: Adapters) -> None:
        names = ["a", "B", "ab", "a-b", "a b", "a/b", "Z", "z", "é", "ÿ", "~", "0", "10", "9"]
        names += ["\uffee", "\U00010000", "\U0010ffff", "_", "%", "a'b", 'a"b', "a\\b", "\x01"]
        await write(b, *(Put(f"o/{name}") for name in names))
        expected = sorted((f"o/{name}" for name in names), key=str.encode)
        assert [*await entries(b, "o/")] == expected
        assert [entry.key for entry in await read_all(b.coordination, "o/", limit=2)] == expected

    @backend_test()
    async def test_a_prefix_matches_exactly_its_characters(self, b: Adapters) -> None:
        names = ("a%c", "abc", "a_c", "A%c", "a*c", "a[b]c", "a\\c", "a%", "a", "é1", "e1", "É1")
        await write(b, *(Put(f"p/{name}") for name in names), Put("pa/a%c"), Put("P/a%c"))
        for start in ("a%", "a_", "a*", "a[b]", "a\\", "A", "é", "a", "", "abcd", "\U0010ffff"):
            expected = {f"p/{name}" for name in names if name.startswith(start)}
            assert {*await entries(b, f"p/{start}")} == expected, start

    @backend_test()
    async def test_a_prefix_of_the_last_characters_matches_too(self, b: Adapters) -> None:
        last = "l/\U0010ffff"
        await write(b, Put(last), Put(last + "x"), Put(last + "\U0010ffff"), Put("l/a"))
        assert [*await entries(b, last)] == [last, last + "x", last + "\U0010ffff"]

    @backend_test()
    async def test_a_section_ends_with_the_first_slash(self, b: Adapters) -> None:
        await write(b, Put("a/b/c", b"1"), Put("a/b", b"2"), Put("ab/c", b"3"))
        assert [*await entries(b, "a/")] == ["a/b", "a/b/c"]
        assert [*await entries(b, "a/b/")] == ["a/b/c"]

    @backend_test()
    async def test_after_is_a_key_that_need_not_exist(self, b: Adapters) -> None:
        await write(b, Put("n/b"), Put("n/d"))
        for after, found in (
            *(("n/a", ["n/b", "n/d"]), ("n/b", ["n/d"]), ("n/c", ["n/d"]), ("n/d", [])),
            *(("a/z", ["n/b", "n/d"]), ("z/a", [])),
        ):
            page = await b.coordination.read("n/", after=after)
            assert [entry.key for entry in page.entries] == found, after
            assert not page.more

    @backend_test()
    async def test_more_says_whether_entries_are_left(self, b: Adapters) -> None:
        await write(b, *(Put(f"m/{n}") for n in range(5)))
        for limit, more in ((2, True), (4, True), (5, False), (6, False)):
            page = await b.coordination.read("m/", limit=limit)
            assert (len(page.entries), page.more) == (min(limit, 5), more)
        page = await b.coordination.read("m/", after="m/2", limit=2)
        assert ([entry.key for entry in page.entries], page.more) == (["m/3", "m/4"], False)

    @backend_test()
    async def test_entries_of_other_prefixes_are_not_more(self, b: Adapters) -> None:
        await write(b, Put("m/a1"), Put("m/a2"), Put("m/b"), Put("n/a"))
        page = await b.coordination.read("m/a", limit=2)
        assert (len(page.entries), page.more) == (2, False)

    @backend_test()
    async def test_thousands_of_entries_are_read_in_pages(self, b: Adapters) -> None:
        keys = [f"many/{n:05}" for n in range(3 * MAX_ENTRIES)]
        for first in range(0, len(keys), MAX_ENTRIES):
            portion = keys[first : first + MAX_ENTRIES]
            await write(b, *(Put(key, key.encode()) for key in portion))
        page = await b.coordination.read("many/", limit=5 * MAX_ENTRIES)
        assert (len(page.entries), page.more) == (MAX_ENTRIES, True)
        found = await read_all(b.coordination, "many/")
        assert [(entry.key, entry.value) for entry in found] == [(k, k.encode()) for k in keys]
        assert len(await read_all(b.coordination, "many/", limit=700)) == len(keys)

    @backend_test()
    async def test_entries_stay_in_their_namespace(self, b: Adapters) -> None:
        async with b.another(f"{b.namespace}2") as elsewhere:
            await write(b, Put("config/x", b"here"))
            assert await revision_of(elsewhere, "config/") == 0
            assert await elsewhere.coordination.commit({"config/x": 0}, [Put("config/x", b"there")])
            await write(elsewhere, deletes=["config/x"])
        assert await entries(b, "config/") == {"config/x": b"here"}


class Commits:
    """``commit``: everything or nothing, if every check holds."""

    @backend_test()
    async def test_puts_and_deletes_happen_together(self, b: Adapters) -> None:
        await write(b, Put("c/old", b"1"), Put("c/kept", b"2"))
        await write(b, Put("c/new", b"3"), Put("d/new", b"4"), deletes=["c/old"])
        assert await entries(b, "c/") == {"c/kept": b"2", "c/new": b"3"}
        assert await entries(b, "d/") == {"d/new": b"4"}

    @backend_test()
    async def test_all_entries_of_a_commit_have_its_revision(self, b: Adapters) -> None:
        revision = await write(b, Put("c/a"), Put("c/b"), Put("d/a"))
        found = [*(await b.coordination.read("c/")).entries]
        found += (await b.coordination.read("d/")).entries
        assert [entry.revision for entry in found] == [revision] * 3

    @backend_test()
    async def test_a_check_holds_for_the_present_revision(self, b: Adapters) -> None:
        first = await write(b, Put("c/a", b"1"))
        second = await b.coordination.commit({"c/a": first}, [Put("c/a", b"2")])
        assert second is not None
        assert second > first
        assert await b.coordination.commit({"c/a": first}, [Put("c/a", b"3")]) is None
        assert await entries(b, "c/") == {"c/a": b"2"}

    @backend_test()
    async def test_the_check_zero_holds_for_an_absent_key_only(self, b: Adapters) -> None:
        first = await b.coordination.commit({"c/a": 0}, [Put("c/a", b"1")])
        assert first is not None
        assert await b.coordination.commit({"c/a": 0}, [Put("c/a", b"2")]) is None
        assert await b.coordination.commit({"c/b": first}, [Put("c/a", b"3")]) is None
        assert await entries(b, "c/") == {"c/a": b"1"}
        await write(b, deletes=["c/a"])
        assert await b.coordination.commit({"c/a": 0}, [Put("c/a", b"4")]) is not None

    @backend_test()
    async def test_one_check_that_does_not_hold_stops_everything(self, b: Adapters) -> None:
        first = await write(b, Put("c/a", b"1"), Put("c/b", b"1"))
        sent = envelope(b)
        checks = {"c/a": first, "d/a": 0, "c/b": first - 1}
        puts = [Put("c/a", b"2"), Put("d/a", b"2")]
        assert await b.coordination.commit(checks, puts, ["c/b"], [sent]) is None
        assert await entries(b, "c/") == {"c/a": b"1", "c/b": b"1"}
        assert await revision_of(b, "c/") == first
        assert await revision_of(b, "d/") == 0
        with pytest.raises(UnknownJob):
            await b.records.find(sent.id)

    @backend_test()
    async def test_a_commit_may_check_keys_that_it_does_not_write(self, b: Adapters) -> None:
        leader = await write(b, Put("lead/a", b"ann"))
        assert await b.coordination.commit({"lead/a": leader}, [Put("c/a", b"1")]) is not None
        await write(b, Put("lead/a", b"bob"))
        assert await b.coordination.commit({"lead/a": leader}, [Put("c/a", b"2")]) is None
        assert await entries(b, "c/") == {"c/a": b"1"}

    @backend_test()
    async def test_an_entry_that_was_deleted_and_written_anew_has_another_revision(
        self, b: Adapters
    ) -> None:
        first = await write(b, Put("c/a", b"1"))
        await write(b, deletes=["c/a"])
        await write(b, Put("c/a", b"1"))
        assert await b.coordination.commit({"c/a": first}, [Put("c/a", b"2")]) is None

    @backend_test()
    async def test_deleting_an_absent_key_is_no_error(self, b: Adapters) -> None:
        first = await write(b, Put("c/a"))
        assert await write(b, deletes=["c/none", "d/none"]) > first
        assert await entries(b, "c/") == {"c/a": b""}

    @backend_test()
    async def test_a_commit_that_only_checks_tells_whether_the_checks_hold(
        self, b: Adapters
    ) -> None:
        first = await write(b, Put("c/a"))
        assert await b.coordination.commit({"c/a": first}) is not None
        assert await b.coordination.commit({"c/a": 0}) is None

    @backend_test()
    async def test_a_commit_that_is_repeated_has_no_effect_if_it_checks_what_it_writes(
        self, b: Adapters
    ) -> None:
        commit = ({"c/a": 0}, [Put("c/a", b"1")])
        first = await b.coordination.commit(*commit)
        assert first is not None
        assert await b.coordination.commit(*commit) is None
        assert await revision_of(b, "c/") == first

    @backend_test()
    async def test_a_key_written_twice_is_refused(self, b: Adapters) -> None:
        for puts, deletes in (
            ([Put("c/a", b"1"), Put("c/a", b"2")], []),
            ([Put("c/a", b"1")], ["c/a"]),
            ([Put("c/b", b"1")], ["c/a", "c/a"]),
        ):
            with pytest.raises(ConfigurationError, match="'c/a'"):
                await b.coordination.commit({}, puts, deletes)
        assert await revision_of(b, "c/") == 0

    @backend_test()
    async def test_the_largest_commit_is_stored_and_a_larger_one_refused(self, b: Adapters) -> None:
        keys = [f"c/{n}" for n in range(MAX_ENTRIES)]
        with pytest.raises(ConfigurationError, match="at most"):
            await write(b, *map(Put, keys), deletes=["c/x"])
        assert await revision_of(b, "c/") == 0
        await write(b, *map(Put, keys))
        assert {*await entries(b, "c/")} == {*keys}
        await write(b, *map(Put, keys[:10]), deletes=keys[10:])
        assert {*await entries(b, "c/")} == {*keys[:10]}

    @backend_test()
    async def test_of_racing_commits_with_the_same_check_one_happens(self, b: Adapters) -> None:
        async with AsyncExitStack() as opened:
            sides = [b, *[await opened.enter_async_context(b.another()) for _ in range(2)]]
            revision = 0
            for name in ("first", "again", "once more"):
                tries = [
                    sides[n % 3].coordination.commit(
                        {"race/a": revision}, [Put("race/a", f"{name} {n}".encode())]
                    )
                    for n in range(20)
                ]
                answers = await asyncio.gather(*tries)
                (winner,) = [n for n, answer in enumerate(answers) if answer is not None]
                assert await entries(b, "race/") == {"race/a": f"{name} {winner}".encode()}
                revision = answers[winner] or 0
                assert await revision_of(b, "race/") == revision

    @backend_test()
    async def test_no_increment_of_a_counter_is_lost(self, b: Adapters) -> None:
        async def add(side: Adapters) -> None:
            while True:
                found = (await side.coordination.read("count/a")).entries
                revision, value = (found[0].revision, int(found[0].value)) if found else (0, 0)
                put = Put("count/a", b"%d" % (value + 1))
                if await side.coordination.commit({"count/a": revision}, [put]) is not None:
                    return

        async with b.another() as other:
            await asyncio.gather(*(add(side) for _ in range(5) for side in (b, other)))
        assert await entries(b, "count/") == {"count/a": b"10"}


class Revisions:
    """Each commit is later than every commit before it, and a revision covers all of them."""

    @backend_test()
    async def test_revisions_grow_over_all_sections_and_processes(self, b: Adapters) -> None:
        async with b.another() as other:
            found = []
            for n in range(4):
                found += [await write(b, Put("r/a")), await write(other, Put(f"s{n}/a"))]
        assert all(first < second for first, second in itertools.pairwise(found))
        assert found[0] > 0

    @backend_test()
    async def test_the_revision_of_a_prefix_is_that_of_its_section(self, b: Adapters) -> None:
        first = await write(b, Put("r/a/x"))
        await write(b, Put("s/a"))
        assert await revision_of(b, "r/") == first
        last = await write(b, Put("r/b"))
        assert [await revision_of(b, one) for one in ("r/", "r/a/", "r/none")] == [last] * 3

    @backend_test()
    async def test_a_delete_is_a_change(self, b: Adapters) -> None:
        await write(b, Put("r/a"), Put("r/b"))
        last = await write(b, deletes=["r/a", "r/b"])
        assert await revision_of(b, "r/") == last
        assert await write(b, Put("r/a")) > last, "the revision is kept after the last entry"

    @backend_test()
    async def test_a_refused_commit_is_no_change(self, b: Adapters) -> None:
        first = await write(b, Put("r/a"))
        assert await b.coordination.commit({"r/a": 0}, [Put("r/b")]) is None
        assert await revision_of(b, "r/") == first

    @backend_test()
    async def test_a_revision_that_was_read_covers_every_commit_up_to_it(self, b: Adapters) -> None:
        pages: list[tuple[int, set[int]]] = []
        written: list[int] = []

        async def watch(side: Adapters) -> None:
            while len(written) < 40:
                page = await side.coordination.read("r/")
                pages.append((page.revision, {entry.revision for entry in page.entries}))
                await asyncio.sleep(0)

        async def work(side: Adapters, name: int) -> None:
            for n in range(10):
                written.append(await write(side, Put(f"r/{name}-{n}")))

        async with AsyncExitStack() as opened:
            sides = [await opened.enter_async_context(b.another()) for _ in range(2)]
            works = [work(sides[n % 2], n) for n in range(4)]
            await asyncio.gather(watch(b), *works)
        assert len({*written}) == 40
        for revision, seen in pages:
            assert seen == {one for one in written if one <= revision}, revision

    @backend_test()
    async def test_a_cancellation_of_a_running_job_changes_the_revision_of_its_section(
        self, b: Adapters
    ) -> None:
        first = await revision_of(b, CANCELLATIONS)
        waiting = await publish(b)
        await b.control.cancel([waiting.id], "not wanted")
        assert await revision_of(b, CANCELLATIONS) == first, "no worker was asked"
        sent, owner = await publish(b), await register(b)
        await claim_one(b, owner)
        await b.control.cancel([sent.id], "not wanted")
        page = await b.coordination.read(CANCELLATIONS)
        assert page.revision > first
        assert page.entries == ()
        assert await write(b, Put("r/a")) > page.revision


class PublishingCommits:
    """Jobs that are published by a commit exist exactly if it happened."""

    @backend_test()
    async def test_a_commit_publishes_its_jobs(self, b: Adapters) -> None:
        sent = [envelope(b), envelope(b, priority=3)]
        assert await _publish(b, {"c/a": 0}, sent) is not None
        assert await entries(b, "c/") == {"c/a": b""}
        assert sorted(ids(await claim(b, await register(b)))) == sorted(ids(sent))

    @backend_test()
    async def test_a_commit_that_did_not_happen_publishes_nothing(self, b: Adapters) -> None:
        await write(b, Put("c/a"))
        sent = envelope(b)
        assert await _publish(b, {"c/a": 0}, [sent]) is None
        with pytest.raises(UnknownJob):
            await b.records.find(sent.id)
        assert await claim(b, await register(b)) == []

    @backend_test()
    async def test_of_racing_commits_one_publishes(self, b: Adapters) -> None:
        async with b.another() as other:
            tries = [
                _publish(side, {"c/a": 0}, [envelope(b)]) for _ in range(10) for side in (b, other)
            ]
            answers = await asyncio.gather(*tries)
        assert len([answer for answer in answers if answer is not None]) == 1
        assert len(await claim(b, await register(b))) == 1

    @backend_test("records")
    async def test_a_job_whose_id_is_known_is_not_published_again(self, b: Adapters) -> None:
        live, ended = await publish(b, queue="other"), await publish_and_settle(b)
        again = [live, envelope(b, id=ended), new := envelope(b)]
        assert await _publish(b, {"c/a": 0}, again) is not None
        assert (await b.records.find(ended)).state is State.SUCCEEDED
        found = await claim(b, await register(b), queues=("default", "other"))
        assert sorted(ids(found)) == sorted([live.id, new.id])

    @backend_test("unique", "records")
    async def test_a_job_whose_unique_key_is_taken_becomes_a_cancelled_record(
        self, b: Adapters
    ) -> None:
        holder = await publish(b, unique="only")
        second, other = envelope(b, unique="only"), envelope(b, unique="it's")
        assert await _publish(b, {"c/a": 0}, [second, other]) is not None
        record = await b.records.find(second.id)
        assert record.state is State.CANCELLED
        assert record.reason == key_taken("only", holder.id)
        assert record.finished is not None
        assert sorted(ids(await claim(b, await register(b)))) == sorted([holder.id, other.id])

    @backend_test("unique", "records")
    async def test_a_unique_key_that_is_free_again_is_not_taken(self, b: Adapters) -> None:
        await publish(b, unique="only")
        await settle(b, await claim_one(b, owner := await register(b)), Succeeded(RESULT))
        second = envelope(b, unique="only")
        assert await _publish(b, {"c/a": 0}, [second]) is not None
        assert ids(await claim(b, owner)) == [second.id]

    @backend_test("delay", "records")
    async def test_a_commit_may_publish_for_later(self, b: Adapters) -> None:
        sent = envelope(b, delay=FAR)
        assert await _publish(b, {}, [sent]) is not None
        assert (await b.records.find(sent.id)).state is State.SCHEDULED

    @backend_test()
    async def test_a_commit_that_publishes_wakes_a_waiting_fetch(self, b: Adapters) -> None:
        async with b.another() as other:
            waiting = asyncio.create_task(claim(other, await register(other), wait=LONG_WAIT))
            await asyncio.sleep(0.05)
            sent = envelope(b)
            await _publish(b, {}, [sent])
            assert ids(await waiting) == [sent.id]

    @backend_test()
    async def test_a_commit_with_a_job_whose_time_is_no_number_is_refused(
        self, b: Adapters
    ) -> None:
        for field in ("delay", "expires_in", "not_before", "expires"):
            with pytest.raises(BadMessage, match=field):
                await _publish(b, {"c/a": 0}, [envelope(b), envelope(b, **{field: float("nan")})])
        assert await revision_of(b, "c/") == 0
        assert await b.broker.depths() == []

    @backend_test()
    async def test_a_commit_may_do_nothing_but_publish(self, b: Adapters) -> None:
        sent = envelope(b)
        assert await b.coordination.commit({}, publish=[sent]) is not None
        assert ids(await claim(b, await register(b))) == [sent.id]

    @backend_test()
    async def test_a_job_whose_time_is_no_number_refuses_the_commit(self, b: Adapters) -> None:
        for field in ("delay", "expires_in", "expires", "not_before"):
            for value in (math.nan, math.inf, -math.inf):
                jobs = [envelope(b), envelope(b, **{field: value}), envelope(b)]
                with pytest.raises(BadMessage) as refused:
                    await _publish(b, {"c/a": 0}, jobs)
                assert refused.value.field == field, value
        assert await entries(b, "c/") == {}
        assert await b.broker.depths() == []
        assert await _publish(b, {"c/a": 0}, []) is not None


async def _publish(b: Adapters, checks: Mapping[str, int], jobs: Sequence[Envelope]) -> int | None:
    puts = [Put(key) for key in checks]
    return await b.coordination.commit(checks, puts, publish=jobs)
