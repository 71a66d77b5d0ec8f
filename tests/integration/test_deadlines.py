"""No call takes longer than its deadline, however many callers share a server that is frozen."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.backends import PORTS, Backend, opened
from integration.running import HOST, Delays, Proxy
from umbel import Umbel
from umbel.errors import PublishTimeout, UmbelError

DEADLINE = 1.0
LATE = 0.2
"""Seconds by which a call may exceed its deadline."""
THREADS = 16
ROUNDS = 2
CALLS = 60
FROZEN = {
    "sqlite": ["sqlite"],
    "postgres": ["postgres"],
    "redis": ["redis"],
    "rabbitmq+redis": ["rabbitmq", "redis"],
    "rabbitmq+redis, the broker alone": ["rabbitmq"],
    "nats+redis": ["nats", "redis"],
    "nats+redis, the store alone": ["redis"],
}


class Frozen:
    """A backend whose servers answer until they are frozen."""

    def __init__(self, far: Backend, near: Backend, freeze: Callable[[], None]) -> None:
        self.far = far
        self.near = near
        self.freeze = freeze


@pytest.fixture(params=FROZEN)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Frozen]:
    kind, names = request.param.partition(",")[0], FROZEN[request.param]
    with ExitStack() as stack:
        proxies = {
            name: stack.enter_context(closing(Proxy(HOST, PORTS[name])))
            for name in names
            if name in PORTS
        }
        ports = {name: proxy.port for name, proxy in proxies.items()}
        far, near = stack.enter_context(opened(kind, tmp_path, ports))

        def freeze() -> None:
            for proxy in proxies.values():
                proxy.silence()
            if kind == "sqlite":
                stack.enter_context(_locked(tmp_path / "umbel.db"))

        yield Frozen(far, near, freeze)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with closing(sqlite3.connect(file, isolation_level=None, timeout=30)) as connection:
        connection.execute("begin immediate")
        yield


@pytest.fixture(params=["none", "memory", "disk"])
def app(request: pytest.FixtureRequest, backend: Frozen, tmp_path: Path) -> Iterator[Umbel]:
    backlog = f"sqlite:///{tmp_path}/backlog.db" if request.param == "disk" else request.param
    app = Umbel(
        backend.far.broker,
        store=backend.far.store,
        namespace=backend.far.namespace,
        deadline=DEADLINE,
        backlog=backlog,
    )
    yield app
    app.close()


def noted(app: Umbel) -> Any:
    @app.task(name="note")
    def note(number: int) -> None: ...

    return note


class Calls:
    """Records how long each call took, and its result."""

    def __init__(self, app: Umbel) -> None:
        self._keeps = app.settings.backlog != "none"
        self._note = noted(app)
        self.took: list[float] = []
        self.ended: list[str] = []

    def publish(self) -> None:
        begun = time.monotonic()
        try:
            self._note.delay(1)
        except PublishTimeout:
            self._end(begun, "timeout")
        else:
            self._end(begun, "published")

    async def apublish(self) -> None:
        begun = time.monotonic()
        try:
            await self._note.adelay(1)
        except PublishTimeout:
            self._end(begun, "timeout")
        else:
            self._end(begun, "published")

    def check(self, count: int, late: float) -> None:
        assert len(self.ended) == count, "a call has raised something else"
        over = [one for one in self.took if one > DEADLINE + LATE + late]
        assert not over, f"{len(over)} of {count} calls, the slowest took {max(over):.2f} s"
        if self._keeps:
            assert "timeout" not in self.ended, "a call was not kept"

    def _end(self, begun: float, how: str) -> None:
        self.took.append(time.monotonic() - begun)
        self.ended.append(how)


def test_no_thread_waits_longer_than_its_deadline_for_a_frozen_server(
    backend: Frozen, app: Umbel
) -> None:
    calls = Calls(app)
    calls.publish()

    def work(number: int) -> None:
        time.sleep(number * DEADLINE / THREADS)  # they come one after another
        for _ in range(ROUNDS):
            calls.publish()

    backend.freeze()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    with Delays() as machine:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    calls.check(1 + THREADS * ROUNDS, machine.seconds)


def test_no_coroutine_waits_longer_than_its_deadline_for_a_frozen_server(
    backend: Frozen, app: Umbel
) -> None:
    calls = Calls(app)
    calls.publish()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLS):
                group.create_task(calls.apublish())
                await asyncio.sleep(2 * DEADLINE / CALLS)

    backend.freeze()
    with Delays() as machine:
        asyncio.run(main())
    calls.check(1 + CALLS, machine.seconds)


def test_a_call_to_a_worker_by_its_name_keeps_its_deadline_when_the_store_is_frozen(
    backend: Frozen,
) -> None:
    app = Umbel(
        backend.far.broker,
        store=backend.far.store,
        namespace=backend.far.namespace,
        deadline=DEADLINE,
        backlog="none",
    )
    note = noted(app)
    note.delay(0)
    backend.freeze()
    named = note.options(worker="somewhere")

    def publish() -> float:
        begun = time.monotonic()
        with pytest.raises(UmbelError):
            named.delay(1)
        return time.monotonic() - begun

    async def apublish() -> float:
        begun = time.monotonic()
        with pytest.raises(UmbelError):
            await named.adelay(1)
        return time.monotonic() - begun

    with Delays() as machine:
        took = [publish(), asyncio.run(apublish())]
    app.close()
    assert max(took) < DEADLINE + LATE + machine.seconds
