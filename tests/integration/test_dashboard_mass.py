"""The dashboard with very many jobs of one error, and with jobs whose arguments are large."""

from __future__ import annotations

import asyncio
import tracemalloc

import httpx
import pytest

from integration.browsing import Browser, declare, served
from integration.conftest import Place, working
from integration.running import ask, ask_backend, until
from umbel import Limit, Retry, Umbel
from umbel.backends import JobFilter, Roles
from umbel.clock import SystemClock
from umbel.dashboard import DashboardOptions, dashboard
from umbel.messages import State
from umbel.operations import FoundJobs, JobSearch
from umbel.operations.job_search import search_jobs

SHOWN = 3_000
"""How many buried jobs the page reads."""
LARGE_JOBS = 300
MAX_MEGABYTES = 70
"""Measured, also with 2,000 jobs: 40 MB. All of their arguments together are 1,000 MB."""


def count(app: Umbel, state: State, task: str = "shop.refund") -> int:
    wanted = JobFilter(states=(state,), task=task, limit=10_000)
    search = JobSearch(wanted=wanted, with_values=False)
    return len(ask(app, lambda operations: operations.search(search)).jobs)


def test_an_error_of_more_jobs_than_the_page_reads_is_retried(shop: Umbel) -> None:
    @shop.task(name="shop.refund", retry=Retry(0))
    async def refund(order: int) -> None:
        raise ConnectionError("the bank did not answer")

    jobs = SHOWN + 100
    shop.publish_many([refund.s(order) for order in range(jobs)])
    with working(shop):
        until(lambda: count(shop, State.BURIED) == jobs, "the jobs to be buried")
    with served(shop) as url:
        browser = Browser(url)
        found = browser.get("/api/v1/buried").json()
        assert found["is_more"]
        [group] = found["groups"]
        fields = {"task": group["task"], "group": group["key"], "count": str(group["count"])}
        page = browser.get("/buried").text
        assert "3,000+" in page
        assert "There are at least 3,000; at most 10,000 are queued at once." in page
        answer = browser.act("retry-group", limit="10", **fields)
        assert answer.json() == {"done": "10 jobs are queued again."}
        answer = browser.act("retry-group", limit=fields["count"], **fields)
        assert answer.json() == {"done": "3,000 jobs are queued again."}
        assert count(shop, State.QUEUED) == 3_010
        answer = browser.act("retry-group", limit="10000", is_more="yes", **fields)
        assert answer.json() == {"done": "90 jobs are queued again."}
        assert browser.act("retry-group", limit="10000", **fields).status_code == 409


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    ["/gates/limit:shop.scan", "/jobs?text=nowhere", "/jobs?state=waiting", "/queues/default"],
)
def test_large_arguments_take_little_memory(sqlite: Place, path: str) -> None:
    shop = declare(sqlite.app())

    @shop.task(name="shop.scan", limit=Limit(0))
    def scan(picture: str) -> None: ...

    for _ in range(LARGE_JOBS // 10):
        shop.publish_many([scan.s("x" * 500_000) for _ in range(10)])
    with working(shop):
        until(lambda: count(shop, State.WAITING, "shop.scan") == LARGE_JOBS, "the jobs to wait")

    async def measure() -> float:
        server = dashboard(shop, DashboardOptions())
        transport = httpx.ASGITransport(server, client=("127.0.0.1", 1))
        async with (
            server.router.lifespan_context(server),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
        ):
            await http.get("/tasks")  # what is imported at the first page is not counted
            tracemalloc.start()
            try:
                answer = await http.get(f"/api/v1{path}")
                assert answer.status_code == 200, answer.text
                assert len(answer.content) < 500_000
                return tracemalloc.get_traced_memory()[1] / 1e6
            finally:
                tracemalloc.stop()

    assert asyncio.run(measure()) < MAX_MEGABYTES


class TickingClock(SystemClock):
    """A clock on which a second passes between two looks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 1.0
        return self.seconds


def test_a_text_search_stops_in_the_middle_of_a_portion_and_continues_there(shop: Umbel) -> None:
    add = shop.registry.find("shop.add")
    handles = shop.publish_many([add.s(1, number) for number in range(20)])

    async def search_in_parts(roles: Roles) -> list[FoundJobs]:
        found: list[FoundJobs] = []
        after: str | None = ""
        while after is not None:
            search = JobSearch(arguments=("1",), after=after, seconds=6.0)
            found.append(
                await search_jobs(roles.records, search, shop.codec, shop.registry, TickingClock())
            )
            after = found[-1].after
        return found

    parts = ask_backend(shop, search_in_parts)
    assert len(parts) >= 3
    assert all(part.is_cut for part in parts[:-1])
    assert all(0 < part.read < 20 for part in parts[:-1])
    jobs = [job.id for part in parts for job in part.jobs]
    assert jobs == [handle.id for handle in reversed(handles)]
