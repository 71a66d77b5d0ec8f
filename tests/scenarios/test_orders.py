"""An order as a workflow ends as it should, wherever a worker is killed and whatever is deployed.

Each order names a point before or after the effect of one node, and its worker is killed there.
"""

from __future__ import annotations

import asyncio
import importlib
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from order_tasks import POINTS, STEPS
from processes import Workers, until

from umbel import State, Umbel

pytestmark = pytest.mark.slow
UNDOS = {"refund", "put_back"}


def load(url: str, version: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a version of the application, as a publisher of it does."""
    broker, _, store = url.partition("|")
    monkeypatch.setenv("UMBEL_BROKER", broker)
    if store:
        monkeypatch.setenv("UMBEL_STORE", store)
    monkeypatch.setenv("ORDER_VERSION", version)
    sys.modules.pop("order_tasks", None)
    return importlib.import_module("order_tasks")


@pytest.fixture
def first(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with closing(sqlite3.connect(tmp_path / "effects.db")) as effects:
        effects.execute("create table effect (order_ text, step text, primary key (order_, step))")
    code = load(url, "1", monkeypatch)
    asyncio.run(code.app.backend.migrate())
    yield code
    code.app.close()


def workers_of(url: str, folder: Path, version: str) -> Workers:
    environment = {"ORDER_FOLDER": str(folder), "ORDER_VERSION": version}
    options = ("--lease", "2", "--io", "4")
    return Workers(url, folder, *options, application="order_tasks", env=environment)


def effects_of(folder: Path) -> dict[str, set[str]]:
    with closing(sqlite3.connect(folder / "effects.db", timeout=60)) as effects:
        found: dict[str, set[str]] = {}
        for order, step in effects.execute("select order_, step from effect"):
            found.setdefault(order, set()).add(step)
        return found


def has_ended(handle: Any) -> bool:
    return all(node.has_ended for node in handle.graph.nodes)


def test_orders_end_as_they_should_wherever_a_worker_is_killed(
    url: str, first: ModuleType, tmp_path: Path
) -> None:
    handles = {}
    for point in POINTS:
        is_undo = point.rpartition(" ")[2] in UNDOS
        for approved in (True, False):
            if approved and is_undo:
                continue  # nothing is undone
            order = f"{point}/{'good' if approved else 'bad'}"
            handles[order] = first.fulfil.delay(order)
            handles[order].signal("approved", approved)
    workers = workers_of(url, tmp_path, "1")
    try:
        worker = workers.start(0)

        def all_ended() -> bool:
            nonlocal worker
            if worker.poll() is not None:
                worker = workers.start(0)
            return len(killed(tmp_path)) == len(handles) and all(map(has_ended, handles.values()))

        until(all_ended, "all orders to end", seconds=240, every=0.2)
    finally:
        workers.end()
    check(handles, effects_of(tmp_path))


def killed(folder: Path) -> list[Path]:
    return [*folder.glob("before_*"), *folder.glob("after_*")]


def check(handles: dict[str, Any], effects: dict[str, set[str]]) -> None:
    for order, handle in handles.items():
        is_good = order.endswith("good")
        assert effects[order] == {*STEPS} - (UNDOS if is_good else set()), order
        assert handle.state is (State.SUCCEEDED if is_good else State.BURIED)
        undos = Counter(node.undoes for node in handle.graph.nodes if node.undoes)
        assert sorted(undos.values()) == ([] if is_good else [1, 1]), order
        if is_good:
            assert handle.get() == "shipped, version 1"


def test_runs_keep_their_shape_over_a_deployment_and_its_roll_back(
    url: str, first: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = {f"x/{n}": first.fulfil.delay(f"x/{n}") for n in range(3)}
    second = load(url, "2", monkeypatch)
    workers = workers_of(url, tmp_path, "2")
    try:
        assert second.fulfil.version != first.fulfil.version
        workers.start(0)
        later = {f"y/{n}": second.fulfil.delay(f"y/{n}") for n in range(2)}
        assert versions(second.app) == {first.fulfil.version: 3, second.fulfil.version: 2}
        for handle in (*earlier.values(), *later.values()):
            handle.signal("approved")
        until(lambda: all(map(has_ended, later.values())), "the new runs to end")
        until(lambda: all(map(waits_for_gift, earlier.values())), "the old runs to wait")
        assert versions(second.app) == {first.fulfil.version: 3}
        workers.signal(0, signal.SIGTERM)
        workers.process(0).wait(60)
    finally:
        workers.end()
    back = workers_of(url, tmp_path, "1")
    try:
        back.start(0)
        until(lambda: all(map(has_ended, earlier.values())), "the old runs to end")
    finally:
        back.end()
        second.app.close()
    effects = effects_of(tmp_path)
    for orders, own in ((earlier, "gift"), (later, "pack")):
        assert all(effects[order] == {"reserve", "charge", own, "ship"} for order in orders)
    assert {handle.get() for handle in later.values()} == {"shipped, version 2"}
    assert versions(first.app) == {}


def waits_for_gift(handle: Any) -> bool:
    """Whether the node whose code was removed is shown as one that has not ended."""
    found = {node.task: node for node in handle.graph.tasks()}
    return found["charge"].has_ended and not found["gift"].has_ended and not handle.state.finished


def versions(app: Umbel) -> dict[str, int]:
    async def ask() -> dict[str, int]:
        operations = app.operations()
        try:
            found = await operations.graphs.workflow_versions()
            return {one.version: one.live for one in found if one.live}
        finally:
            await operations.close()

    return asyncio.run(ask())
