"""Numbers over time, written and folded by real workers."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.backends import opened
from integration.conftest import working
from integration.running import ask, ask_backend, until
from umbel import Retry, Umbel
from umbel.backends import Page, Put, Roles
from umbel.charts import ChartData, Recorder, Tally
from umbel.charts.folding import NEW, NUMBERS
from umbel.clock import SystemClock
from umbel.errors import Unavailable
from umbel.messages import Succeeded
from umbel.operations import Operations


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Umbel]:
    with opened(request.param, tmp_path) as (_, place):
        app = Umbel(place.broker, namespace=place.namespace, deadline=15)
        asyncio.run(app.backend.migrate())
        yield app
        app.close()


def read(app: Umbel, period: Any = "15m") -> ChartData:
    async def question(operations: Operations) -> ChartData:
        return await operations.charts(period)

    return ask(app, question)


def succeeded(data: ChartData) -> int:
    return sum(point.succeeded or 0 for point in data.points)


def keys(app: Umbel, prefix: str) -> list[str]:
    async def question(roles: Roles) -> Page:
        return await roles.coordination.read(prefix)

    return [entry.key for entry in ask_backend(app, question).entries]


def tally(jobs: int) -> Tally:
    """Return a tally that has counted so many jobs."""
    found = Tally()
    for _ in range(jobs):
        found.count([("add", "default", Succeeded(), 0.01)])
    return found


def recorder(coordination: Any, counted: Tally) -> Recorder:
    return Recorder(coordination, counted, clock=SystemClock())


@asynccontextmanager
async def roles_of(app: Umbel) -> AsyncIterator[Roles]:
    roles = app.backend.open()
    try:
        yield roles
    finally:
        await roles.close()


def test_the_counts_are_those_of_the_jobs_that_workers_ran(app: Umbel) -> None:
    @app.task(name="add")
    async def add(a: int) -> int:
        return a

    @app.task(name="fail", retry=Retry(2, first=0.01))
    async def fail() -> None:
        raise ValueError("no")

    with working(app, name="one"), working(app, name="two"):
        handles = [*app.publish_many([add.s(n) for n in range(200)]), fail.delay()]
        until(lambda: all(handle.state.finished for handle in handles), "all jobs")
    for period in ("15m", "1h", "24h", "7d"):
        data = read(app, period)
        assert len(data.points) <= 120
        assert not data.points[-1].complete
        assert succeeded(data) == 200
        totals = {one.task: (one.runs, one.failures, one.buried) for one in data.tasks}
        attempts = len(handles[-1].record().attempts)
        assert totals == {"add": (200, 0, 0), "fail": (attempts, attempts, 1)}
        assert any(point.depths is not None for point in data.points)
        assert any(point.succeeded is None and point.p50 is None for point in data.points)
    assert keys(app, NEW) == []


def test_the_time_that_jobs_wait_for_their_first_run_is_recorded(app: Umbel) -> None:
    @app.task(name="fail", retry=Retry(1, first=0.01))
    async def fail() -> None:
        raise ValueError("no")

    jobs = app.publish_many([fail.options(delay=1.0).s() for _ in range(10)])
    before = ask(app, lambda operations: operations.charts("15m")).now
    with working(app):
        until(lambda: all(job.state.finished for job in jobs), "all jobs")
    records = [job.record() for job in jobs]
    longest = max(one.attempts[0].started - one.created for one in records) - 1.0
    points = [point for point in read(app).points if point.wait_p95 is not None]
    assert points
    assert all(point.time > before - 30 for point in points)
    for point in points:
        assert point.wait_p50 is not None
        assert point.wait_p95 is not None
        # The delay is not counted, nor is the wait for a retry. A bucket is at most 2.5 times wide.
        assert 0.0 < point.wait_p50 <= point.wait_p95 <= 2.5 * max(longest, 0.001)


def test_a_worker_that_runs_no_job_writes_nothing(app: Umbel) -> None:
    @app.task(name="add")
    async def add(a: int) -> int:
        return a

    with working(app):
        pass
    assert keys(app, NUMBERS) == []


def test_recorders_that_fold_at_the_same_time_count_each_job_once(app: Umbel) -> None:
    async def scenario() -> None:
        async with roles_of(app) as one, roles_of(app) as two:
            recorders = [recorder(each.coordination, tally(10)) for each in (one, two) * 4]
            await asyncio.gather(*(each.record() for each in recorders))
            await asyncio.gather(*(each.fold() for each in recorders))
            await recorders[0].fold()

    asyncio.run(scenario())
    assert succeeded(read(app)) == 80
    assert keys(app, NEW) == []


def test_documents_of_a_worker_that_was_killed_before_it_folded_are_counted(app: Umbel) -> None:
    code = """
import asyncio, os, signal, sys
from umbel import Umbel
from umbel.charts import Recorder, Tally
from umbel.clock import SystemClock
from umbel.messages import Succeeded

async def main():
    roles = Umbel(sys.argv[1], namespace=sys.argv[2]).backend.open()
    tally = Tally()
    for _ in range(7):
        tally.count([("add", "default", Succeeded(), 0.01)])
    await Recorder(roles.coordination, tally, clock=SystemClock()).record()
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    command = [sys.executable, "-c", code, app.settings.broker, app.settings.namespace]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    assert len(keys(app, NEW)) == 1
    assert succeeded(read(app)) == 7  # also before another worker folds it

    async def scenario() -> None:
        async with roles_of(app) as roles:
            other = recorder(roles.coordination, tally(1))
            await other.record()
            await other.fold()

    asyncio.run(scenario())
    assert keys(app, NEW) == []
    assert succeeded(read(app)) == 8


class LostAnswers:
    """Coordination whose next commits happen, but whose answers are lost."""

    def __init__(self, inner: Any, lost: int) -> None:
        self._inner = inner
        self._lost = lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(
        self, checks: Mapping[str, int], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int | None:
        revision: int | None = await self._inner.commit(checks, puts, deletes)
        self._lost -= 1
        if self._lost >= 0:
            raise Unavailable("the answer was lost")
        return revision


def test_a_write_whose_answer_was_lost_is_counted_once_even_after_it_was_folded(
    app: Umbel,
) -> None:
    async def scenario() -> None:
        async with roles_of(app) as roles:
            counted = tally(5)
            one = recorder(LostAnswers(roles.coordination, 1), counted)
            with pytest.raises(Unavailable):
                await one.record()
            await recorder(roles.coordination, Tally()).fold()
            counted.count([("add", "default", Succeeded(), 0.01)])
            await one.record()
            await one.fold()

    asyncio.run(scenario())
    assert succeeded(read(app)) == 6


def test_entries_of_others_are_deleted_and_do_not_stop_the_fold(app: Umbel) -> None:
    async def scenario() -> None:
        async with roles_of(app) as roles:
            bad = [Put(NEW + "a", b"{}"), Put(f"{NEW}{7:012d}/b", b"?"), Put(NEW + "c/d", b"\xff")]
            await roles.coordination.commit({}, bad)
            one = recorder(roles.coordination, tally(3))
            await one.record()
            await one.fold()

    asyncio.run(scenario())
    assert keys(app, NEW) == []
    assert succeeded(read(app)) == 3
