"""A broadcast reaches every worker once, waits for none that is dead, and tells who did what."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import broadcast_tasks as tasks
import pytest
from processes import Workers, until
from scenario_client import Client

WORKER_COUNT = 5


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(url, tmp_path, "--lease", "2", application="broadcast_tasks")
    yield workers
    workers.end()


@pytest.fixture
def five_workers(client: Client, workers: Workers) -> Workers:
    for index in range(WORKER_COUNT):
        workers.start(index)
    until(lambda: len(client.workers()) == WORKER_COUNT, "all workers to register")
    return workers


def test_a_broadcast_reports_four_results_and_the_killed_worker_as_missing(
    client: Client, five_workers: Workers
) -> None:
    handle = client.app.handle(client.publish([tasks.notify.s(2)])[0])
    found: dict[str, Any] = handle.get(timeout=120)
    states = sorted((one["index"], one["state"]) for one in found.values())
    assert states == [(0, "done"), (1, "done"), (2, "missing"), (3, "done"), (4, "done")]
    assert all(one["result"] == 1 for one in found.values() if one["state"] == "done")


def test_a_worker_that_joins_in_time_runs_the_broadcast_too(
    client: Client, five_workers: Workers
) -> None:
    handle = client.app.handle(client.publish([tasks.welcome.s()])[0])
    until(lambda: _done(client) >= WORKER_COUNT, "the first five workers to run it")
    five_workers.start(WORKER_COUNT)
    until(lambda: _done(client) == WORKER_COUNT + 1, "the new worker to run it")
    time.sleep(1.5)  # and no worker runs it twice
    assert _done(client) == WORKER_COUNT + 1
    handle.cancel()


def _done(client: Client) -> int:
    return sum(record.state == "succeeded" for record in client.records())
