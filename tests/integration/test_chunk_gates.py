"""A chunk passes the gates of its task, as one job."""

from __future__ import annotations

from typing import Any

import pytest

from integration.running import Gauge, Signal, until, working
from umbel import Limit, Retry, Umbel, chunks, current


@pytest.mark.parametrize("over", ["a list", "a result"])
def test_chunks_wait_for_the_limit_of_their_task_also_when_they_are_retried(
    app: Umbel, over: str
) -> None:
    running, goes_on = Gauge(), Signal()

    @app.task(name="numbers")
    async def numbers(count: int) -> list[tuple[int]]:
        return [(number,) for number in range(count)]

    @app.task(name="limited", limit=Limit(1), retry=Retry(1, first=0.01, jitter=False))
    async def limited(number: int) -> int:
        if current.job.attempt == 1:
            raise ConnectionError("again")
        with running:
            await goes_on.seen()
        return number

    items: Any = [(0,), (1,), (2,)] if over == "a list" else numbers.s(3)
    with working(app, io=10):
        handle = chunks(limited, items, 1).delay()

        def one_runs() -> bool:
            found = handle.graph.counts()
            return running.entered == 1 and found.get("waiting") == 2

        until(one_runs, "two chunks to wait for the limit")
        goes_on.set()
        assert handle.get(timeout=30) == [0, 1, 2]
        assert (running.most, running.entered) == (1, 3)
