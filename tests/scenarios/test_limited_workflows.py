"""A worker is killed while a run gets its place, or gives it to the next one."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from processes import Workers, until

from umbel import State

pytestmark = pytest.mark.slow
POINTS = ("before commit", "after commit", "before resolve", "after resolve")


@pytest.fixture
def code(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    broker, _, store = url.partition("|")
    monkeypatch.setenv("UMBEL_BROKER", broker)
    if store:
        monkeypatch.setenv("UMBEL_STORE", store)
    sys.modules.pop("limited_tasks", None)
    code = importlib.import_module("limited_tasks")
    asyncio.run(code.app.backend.migrate())
    yield code
    code.app.close()


@pytest.mark.parametrize("when", ["begins", "ends"])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_no_place_taken_and_gives_none_twice(
    url: str, code: ModuleType, tmp_path: Path, point: str, when: str
) -> None:
    if when == "begins" and "resolve" in point:
        pytest.skip("no other run is woken when the first begins")
    environment = {"KILL_POINT": point}
    options = ("--lease", "2", "--io", "4")
    workers = Workers(url, tmp_path, *options, application="limited_tasks", env=environment)
    killed, armed = tmp_path / "traces" / "killed", tmp_path / "traces" / "armed"
    if when == "begins":
        armed.touch()
    handles = [code.limited.delay(1)]
    try:
        worker = workers.start(0)

        def is_done(condition: Any) -> bool:
            nonlocal worker
            if worker.poll() is not None:
                worker = workers.start(0)
            return bool(condition())

        def place(handle: Any) -> Any:
            return handle.graph.find("place")

        until(lambda: is_done(lambda: place(handles[0]).state == "succeeded"), "the first run")
        handles += [code.limited.delay(number) for number in (2, 3)]
        until(lambda: all(place(one).state == "scheduled" for one in handles[1:]), "the others")
        armed.touch()
        for handle in handles:
            handle.signal("go")
        until(lambda: is_done(lambda: all(one.state.finished for one in handles)), "all to end")
    finally:
        workers.end()
    assert killed.exists()
    assert [one.state for one in handles] == [State.SUCCEEDED] * 3
    assert [one.get() for one in handles] == [1, 2, 3]
    times = [[node for node in one.graph.nodes if node.task == "note"] for one in handles]
    for before, after in pairwise(times):
        assert max(one.finished for one in before) <= min(one.started for one in after)
