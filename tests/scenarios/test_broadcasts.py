"""A broadcast reaches every worker once, waits for none that is dead, and tells who did what."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import told_tasks as tasks
from desk import Client
from processes import Workers, until

CREW = 5


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(url, tmp_path, "--lease", "2", application="told_tasks")
    yield workers
    workers.end()


@pytest.fixture
def crew(desk: Client, workers: Workers) -> Workers:
    for index in range(CREW):
        workers.start(index)
    until(lambda: len(desk.workers()) == CREW, "the crew to register")
    return workers


def test_four_have_done_it_and_the_dead_one_is_missing(desk: Client, crew: Workers) -> None:
    handle = desk.app.handle(desk.publish([tasks.told.s(2)])[0])
    found: dict[str, Any] = handle.get(timeout=120)
    states = sorted((one["index"], one["state"]) for one in found.values())
    assert states == [(0, "done"), (1, "done"), (2, "missing"), (3, "done"), (4, "done")]
    assert all(one["result"] == 1 for one in found.values() if one["state"] == "done")


def test_who_joins_in_time_is_told_too(desk: Client, crew: Workers) -> None:
    handle = desk.app.handle(desk.publish([tasks.welcome.s()])[0])
    until(lambda: _done(desk) >= CREW, "the first to have done it")
    crew.start(CREW)
    until(lambda: _done(desk) == CREW + 1, "the one that joined to have done it")
    time.sleep(1.5)  # and nobody twice
    assert _done(desk) == CREW + 1
    handle.cancel()


def _done(desk: Client) -> int:
    return sum(record.state == "succeeded" for record in desk.records())
