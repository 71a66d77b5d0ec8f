"""Records: every job that was published, live or finished."""

from __future__ import annotations

import pytest

from umbel.backends import JobFilter, ProgressNote
from umbel.errors import ConfigurationError, UnknownJob
from umbel.messages import (
    TERMINAL,
    Failed,
    Interrupted,
    Snoozed,
    State,
    Succeeded,
    fresh_id,
)
from umbel.testing.actions import (
    FAILURE,
    FAR,
    RESULT,
    claim,
    claim_one,
    ids,
    publish,
    publish_and_claim,
    publish_and_settle,
    publish_many,
    register,
    settle,
    settlement,
)
from umbel.testing.backend import Adapters, backend_test

PORTION = 1000
"""How many rows an adapter reads at once at least."""


class Finding:
    """One job by its id."""

    @backend_test("records")
    async def test_an_unknown_id_is_an_error_and_never_pending(self, b: Adapters) -> None:
        with pytest.raises(UnknownJob):
            await b.records.find(fresh_id())

    @backend_test("records")
    async def test_text_that_is_no_id_is_an_unknown_job(self, b: Adapters) -> None:
        with pytest.raises(UnknownJob):
            await b.records.find("no such id")

    @backend_test("records")
    async def test_a_live_job_is_found_with_its_published_fields(self, b: Adapters) -> None:
        sent = await publish(b, priority=4, headers={"note": "x"}, expires=4_000_000_000.5)
        found = await b.records.find(sent.id)
        assert (found.id, found.task, found.queue) == (sent.id, sent.subject, sent.queue)
        assert (found.body, found.headers) == (sent.body, sent.headers)
        assert (found.priority, found.expires) == (4, 4_000_000_000.5)
        assert (found.attempt, found.deaths, found.attempts) == (1, 0, ())
        assert (found.result, found.failure, found.finished) == (None, None, None)

    @backend_test("records")
    async def test_a_job_is_found_from_another_process(self, b: Adapters) -> None:
        job = await publish_and_settle(b)
        async with b.another() as other:
            assert await other.records.find(job) == await b.records.find(job)

    @backend_test()
    async def test_the_tasks_of_live_and_finished_jobs_are_read_together(self, b: Adapters) -> None:
        live, ended = await publish_many(b, 2)
        await b.control.cancel([ended.id], "x")
        found = await b.records.tasks([ended.id, fresh_id(), "none", live.id])
        assert found == {live.id: live.subject, ended.id: ended.subject}
        assert await b.records.tasks([]) == {}

    @backend_test("records")
    async def test_a_job_of_another_namespace_is_unknown(self, b: Adapters) -> None:
        live, done = await publish(b, queue="other"), await publish_and_settle(b)
        async with b.another(f"{b.namespace}2") as elsewhere:
            for job in (live.id, done):
                with pytest.raises(UnknownJob):
                    await elsewhere.records.find(job)


class Searching:
    """Lists of jobs."""

    @backend_test("records")
    async def test_live_jobs_are_listed_newest_first(self, b: Adapters) -> None:
        sent = await publish_many(b, 5)
        found = await b.records.search(JobFilter())
        assert [one.id for one in found] == ids(sent)[::-1]

    @backend_test("records")
    async def test_finished_jobs_are_listed_last_finished_first(self, b: Adapters) -> None:
        done = [await publish_and_settle(b) for _ in range(4)]
        found = await b.records.search(JobFilter(states=(State.SUCCEEDED,)))
        assert [one.id for one in found] == done[::-1]

    @backend_test("records")
    async def test_live_and_finished_jobs_are_listed_once_each(self, b: Adapters) -> None:
        done = await publish_and_settle(b)
        held = await publish_and_claim(b)
        sent = await publish(b)
        found = [one.id for one in await b.records.search(JobFilter())]
        assert sorted(found) == sorted([done, held.id, sent.id])

    @backend_test("records")
    async def test_a_list_is_no_longer_than_asked_for(self, b: Adapters) -> None:
        for _ in range(3):
            await publish_and_settle(b)
        await publish_many(b, 3)
        assert len(await b.records.search(JobFilter(limit=4))) == 4
        assert len(await b.records.search(JobFilter(limit=2))) == 2

    @backend_test("records")
    async def test_jobs_are_listed_that_were_published_before_a_moment(self, b: Adapters) -> None:
        done = await publish_and_settle(b)
        sent = await publish(b)
        for one in (done, sent.id):
            created = (await b.records.find(one)).created
            before = await b.records.search(JobFilter(published_before=created))
            after = await b.records.search(JobFilter(published_before=created + 0.001))
            assert one not in [record.id for record in before]
            assert one in [record.id for record in after]

    @backend_test("records", "delay")
    async def test_jobs_are_listed_by_state(self, b: Adapters) -> None:
        by_state = {
            State.SUCCEEDED: await publish_and_settle(b),
            State.BURIED: await publish_and_settle(b, Failed(FAILURE)),
            State.RUNNING: (await publish_and_claim(b)).id,
            State.SCHEDULED: (await publish(b, not_before=b.clock.now() + FAR)).id,
            State.QUEUED: (await publish(b)).id,
        }
        for state, job in by_state.items():
            found = await b.records.search(JobFilter(states=(state,)))
            assert [one.id for one in found] == [job], state
        both = await b.records.search(JobFilter(states=(State.BURIED, State.RUNNING)))
        assert {one.id for one in both} == {by_state[State.BURIED], by_state[State.RUNNING]}

    @backend_test("records")
    async def test_jobs_are_listed_by_task_and_queue(self, b: Adapters) -> None:
        await publish_many(b, 2)
        mail = await publish(b, queue="mail")
        other = await publish(b, subject="tests.other")
        record_missing_queue = await b.records.search(JobFilter(queue="mail"))
        by_task = await b.records.search(JobFilter(task="tests.other"))
        neither = await b.records.search(JobFilter(queue="mail", task="tests.other"))
        assert [one.id for one in record_missing_queue] == [mail.id]
        assert [one.id for one in by_task] == [other.id]
        assert neither == []

    @backend_test("records")
    async def test_jobs_are_listed_by_worker(self, b: Adapters) -> None:
        anna, bert = await register(b, "anna"), await register(b, "bert")
        held = await publish_and_claim(b, anna)
        done = await publish_and_claim(b, bert)
        await settle(b, done, Succeeded(RESULT))
        for name, job in (("anna", held.id), ("bert", done.id)):
            found = await b.records.search(JobFilter(worker=name))
            assert [one.id for one in found] == [job], name

    @backend_test("records")
    async def test_an_empty_name_in_a_filter_is_an_error_and_not_all(self, b: Adapters) -> None:
        await publish(b)
        for field in ("task", "queue", "worker"):
            with pytest.raises(ConfigurationError, match=f"{field}=.*empty"):
                await b.records.search(JobFilter(**{field: ""}))  # type: ignore[arg-type]

    @backend_test("records")
    async def test_other_namespaces_are_not_listed(self, b: Adapters) -> None:
        await publish_and_settle(b)
        await publish(b)
        async with b.another(f"{b.namespace}2") as elsewhere:
            assert await elsewhere.records.search(JobFilter()) == []


class Scanning:
    """Lists of jobs in pages, each of which reads a bounded number of jobs."""

    @backend_test("records")
    async def test_pages_have_every_job_once_in_the_order_of_the_list(self, b: Adapters) -> None:
        for outcome in (Succeeded(RESULT), Failed(FAILURE)) * 3:
            await publish_and_settle(b, outcome)
        await publish_many(b, 4)
        every = [one.id for one in await b.records.search(JobFilter())]
        assert len(every) == 10
        for size in (1, 3, 4, 10, 11):
            assert await read_pages(b, JobFilter(limit=size)) == every, size

    @backend_test("records")
    async def test_a_page_continues_after_any_job_of_the_page_before(self, b: Adapters) -> None:
        for _ in range(3):
            await publish_and_settle(b)
        await publish_many(b, 3)
        every = [one.id for one in await b.records.search(JobFilter())]
        seen: list[str] = []
        for wanted in (JobFilter(), JobFilter(states=tuple(TERMINAL))):
            page = await b.records.scan(wanted, rows=100)
            for job, cursor in zip(page.jobs, page.cursors, strict=True):
                rest = await read_pages(b, wanted, after=cursor)
                assert rest == every[every.index(job.id) + 1 :]
                seen.append(job.id)
        assert seen == every

    @backend_test("records")
    async def test_a_page_continues_after_a_job_that_was_deleted(self, b: Adapters) -> None:
        await settle_many(b, 6)  # at the same moment, on most stores
        done = [one.id for one in await b.records.search(JobFilter())]
        page = await b.records.scan(JobFilter(states=tuple(TERMINAL), limit=3), rows=100)
        assert page.after is not None
        await b.records.remove([page.jobs[-1].id])
        assert await read_pages(b, JobFilter(), after=page.after) == done[3:]

    @backend_test("records")
    async def test_a_page_of_a_rare_task_ends_after_so_many_finished_jobs(
        self, b: Adapters
    ) -> None:
        rare = await publish_and_settle(b, subject="tests.rare")
        for _ in range(3 * (PORTION // 500)):
            await settle_many(b, 500)
        wanted = JobFilter(task="tests.rare", states=tuple(TERMINAL))
        page = await b.records.scan(wanted, rows=PORTION)
        assert (page.jobs, page.read) == ([], PORTION)
        assert page.after is not None
        assert await read_pages(b, wanted, rows=PORTION) == [rare]
        assert [one.id for one in await b.records.search(wanted)] == [rare]

    @backend_test("records")
    async def test_jobs_are_listed_by_the_time_at_which_they_finished(self, b: Adapters) -> None:
        done = []
        for outcome in (Succeeded(RESULT), Failed(FAILURE), Succeeded(RESULT)):
            done.append(await publish_and_settle(b, outcome))
            if b.time_travels:
                b.advance(0.1)
        times = {job: (await b.records.find(job)).finished for job in done}
        assert len({*times.values()}) == 3
        for job, finished in times.items():
            assert await read_pages(b, JobFilter(since=finished, until=finished)) == [job]
            later = [one for one in done[::-1] if times[one] >= finished]  # type: ignore[operator]
            assert await read_pages(b, JobFilter(since=finished)) == later
            earlier = [one for one in done[::-1] if times[one] <= finished]  # type: ignore[operator]
            assert await read_pages(b, JobFilter(until=finished)) == earlier
            assert await read_pages(b, JobFilter(until=finished, limit=1)) == earlier
        assert await read_pages(b, JobFilter(since=1e300)) == []
        assert await read_pages(b, JobFilter(since=-1e300, until=1e300)) == done[::-1]

    @backend_test("records")
    async def test_live_jobs_are_listed_by_the_time_of_their_publication(self, b: Adapters) -> None:
        job = (await publish(b)).id
        created = (await b.records.find(job)).created
        for found in (
            JobFilter(since=created - 1, until=created + 1),
            JobFilter(since=created - 1),
            JobFilter(until=created + 1),
        ):
            assert await read_pages(b, found) == [job]
        for missed in (JobFilter(since=created + 1), JobFilter(until=created - 1)):
            assert await read_pages(b, missed) == []

    @backend_test("records")
    async def test_jobs_are_listed_by_either_end_of_their_id(self, b: Adapters) -> None:
        done, live = await publish_and_settle(b), (await publish_many(b, 3))[1].id
        for job in (live, done):
            for part in (job[-8:], job[:-1], job[1:], job):
                assert await read_pages(b, JobFilter(id_part=part)) == [job]
        for part in ("%", live[1:-1], f"{live}0"):
            assert await read_pages(b, JobFilter(id_part=part)) == []

    @backend_test("records")
    async def test_a_text_that_is_not_a_cursor_is_refused(self, b: Adapters) -> None:
        for text in ("x", "live_", "live_x", "ended_1", "ended_nan_a", f"live_{'9' * 400}"):
            with pytest.raises(ConfigurationError, match="is not a cursor"):
                await b.records.scan(JobFilter(), after=text, rows=10)


async def settle_many(b: Adapters, many: int) -> None:
    """Publish so many jobs, and let them succeed."""
    owner = await register(b)
    await publish_many(b, many)
    left = many
    while left:
        held = await claim(b, owner)
        assert await b.broker.settle([settlement(one, Succeeded(RESULT)) for one in held]) == []
        left -= len(held)


async def read_pages(
    b: Adapters, wanted: JobFilter, after: str = "", rows: int = 100_000
) -> list[str]:
    """Return the ids of all pages."""
    found: list[str] = []
    cursor: str | None = after
    while cursor is not None:
        page = await b.records.scan(wanted, after=cursor, rows=rows)
        assert len(page.jobs) <= wanted.limit
        found += [job.id for job in page.jobs]
        cursor = page.after
    return found


class Progress:
    """The progress that a running job reports."""

    @backend_test("records")
    async def test_progress_shows_in_the_record(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await b.records.record_progress([ProgressNote(held.id, held.lease.fence, 3, 10)])
        assert (await b.records.find(held.id)).progress == (3, 10)
        await b.records.record_progress([ProgressNote(held.id, held.lease.fence, 4, None)])
        assert (await b.records.find(held.id)).progress == (4, None)

    @backend_test("records")
    async def test_a_job_that_said_nothing_shows_no_progress(self, b: Adapters) -> None:
        assert (await b.records.find((await publish_and_claim(b)).id)).progress is None

    @backend_test("records")
    async def test_progress_under_an_old_fence_changes_nothing(self, b: Adapters) -> None:
        old = await publish_and_claim(b)
        await settle(b, old, Interrupted())
        current = await claim_one(b, old.lease.owner)
        await b.records.record_progress([ProgressNote(old.id, current.lease.fence, 1, 2)])
        await b.records.record_progress([ProgressNote(old.id, old.lease.fence, 9, 9)])
        assert (await b.records.find(old.id)).progress == (1, 2)

    @backend_test("records", "delay")
    async def test_late_progress_does_not_show_on_a_requeued_job(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await settle(b, held, Snoozed(FAR))
        await b.records.record_progress([ProgressNote(held.id, held.lease.fence, 9, 9)])
        assert (await b.records.find(held.id)).progress is None

    @backend_test("records")
    async def test_a_new_run_starts_without_the_progress_of_the_last(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await b.records.record_progress([ProgressNote(held.id, held.lease.fence, 9, 9)])
        await b.registry.unregister(held.lease.owner)
        await b.broker.recover()
        await claim_one(b, await register(b))
        assert (await b.records.find(held.id)).progress is None

    @backend_test("records")
    async def test_notes_on_finished_and_unknown_jobs_change_nothing(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await settle(b, held, Succeeded(RESULT))
        before = await b.records.find(held.id)
        notes = [ProgressNote(held.id, held.lease.fence, 1, 1), ProgressNote(fresh_id(), 1, 1, 1)]
        await b.records.record_progress(notes)
        await b.records.record_progress([])
        assert await b.records.find(held.id) == before

    @backend_test("records")
    async def test_a_finished_job_keeps_its_last_progress(self, b: Adapters) -> None:
        held = await publish_and_claim(b)
        await b.records.record_progress([ProgressNote(held.id, held.lease.fence, 3, 10)])
        await settle(b, held, Failed(FAILURE))
        assert (await b.records.find(held.id)).progress == (3, 10)
        assert await claim(b, held.lease.owner) == []
