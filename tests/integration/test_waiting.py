"""A wait for a result respects its timeout, and knows the messages in the process's backlog."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from integration.conftest import HANG, POSTGRES, Place, working
from integration.running import Delays, Heard, Proxy
from umbel import Umbel
from umbel.errors import ConfigurationError, ResultTimeout, Unavailable, UnknownJob
from umbel.messages import fresh_id
from umbel.telemetry import events

REDIS = os.environ.get("UMBEL_TEST_REDIS", "redis://127.0.0.1:6379/0")
LATE = 0.2
"""Seconds by which a call may exceed its timeout."""


@contextmanager
def taking(seconds: float) -> Iterator[None]:
    with Delays() as machine:
        begun = time.monotonic()
        yield
        took = time.monotonic() - begun
    assert took < seconds + LATE + machine.seconds


def doubling(app: Umbel) -> Any:
    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    return double


# --- a server that stops answering -------------------------------------------------------------


class Far:
    """Applications whose store is behind a proxy that can freeze."""

    def __init__(self, proxy: Proxy, **urls: str) -> None:
        self._proxy = proxy
        self._urls = urls
        self._namespace = f"t{fresh_id()}"
        self._closing = ExitStack()

    def app(self, deadline: float = 15.0) -> Umbel:
        how: Any = {**self._urls, "namespace": self._namespace, "deadline": deadline}
        app = Umbel(backlog="none", **how)
        self._closing.callback(app.close)
        return app

    def freeze(self) -> None:
        self._proxy.silence()

    def thaw(self) -> None:
        self._proxy.mend()

    def close(self) -> None:
        self.thaw()
        self._closing.close()
        self._proxy.close()
        if any(url.startswith("redis") for url in self._urls.values()):
            import redis

            with redis.Redis.from_url(REDIS) as client:
                for key in client.scan_iter(match=f"umbel*{self._namespace}*", count=1000):
                    client.delete(key)


@pytest.fixture(params=["postgres", "redis", "redis and postgres"])
def far(request: pytest.FixtureRequest) -> Iterator[Far]:
    where = psycopg.conninfo.conninfo_to_dict(POSTGRES)
    schema = ""
    if "redis" in request.param:
        library = pytest.importorskip("redis")
        try:
            library.Redis.from_url(REDIS, socket_connect_timeout=2).ping()
        except library.RedisError as error:
            pytest.skip(f"not run: Redis does not answer ({error})")
    if "postgres" in request.param:
        schema = request.getfixturevalue("postgres_url").rpartition("schema=")[2]
        proxy = Proxy(str(where["host"]), int(str(where.get("port") or 5432)))
        base = f"postgresql://{where['user']}@127.0.0.1:{proxy.port}/{where['dbname']}"
        store = f"{base}?schema={schema}"
        urls = {"broker": store} if request.param == "postgres" else {"broker": REDIS}
        found = Far(proxy, **urls, **({"store": store} if "redis" in request.param else {}))
    else:
        host, _, port = REDIS.partition("://")[2].partition("/")[0].partition(":")
        proxy = Proxy(host, int(port or 6379))
        found = Far(proxy, broker=f"redis://127.0.0.1:{proxy.port}/0")
    yield found
    found.close()


@pytest.mark.parametrize("asks", ["for the first time", "again"])
def test_get_keeps_to_its_timeout_while_the_store_does_not_answer(far: Far, asks: str) -> None:
    handle = doubling(far.app()).delay(21)
    if asks == "for the first time":
        handle = far.app().handle(handle.id)
    else:
        with pytest.raises(ResultTimeout):
            handle.get(timeout=0)
        with pytest.raises(ResultTimeout):
            asyncio.run(handle.aget(timeout=0))
    far.freeze()
    with taking(1.0), pytest.raises(ResultTimeout, match="not finished within 1 s"):
        handle.get(timeout=1)
    with taking(1.0), pytest.raises(ResultTimeout, match="not finished within 1 s"):
        asyncio.run(handle.aget(timeout=1))
    with taking(0.2), pytest.raises(ResultTimeout):
        handle.get(timeout=0.2)


def test_many_that_wait_at_the_same_time_all_keep_to_their_timeout(far: Far) -> None:
    handle = doubling(far.app()).delay(21)

    async def main() -> list[Any]:
        calls = (handle.aget(timeout=1) for _ in range(20))
        return await asyncio.gather(*calls, return_exceptions=True)

    far.freeze()
    with taking(1.0):
        assert {type(answer) for answer in asyncio.run(main())} == {ResultTimeout}


def test_a_result_is_found_after_waits_that_timed_out(far: Far) -> None:
    app = far.app()
    handle = doubling(app).delay(21)
    far.freeze()
    with pytest.raises(ResultTimeout):
        handle.get(timeout=0.5)
    far.thaw()
    with working(app):
        assert handle.get(timeout=HANG) == 42


CALLS: dict[str, Callable[[Any], Any]] = {
    "state": lambda handle: handle.state,
    "cancel": lambda handle: handle.cancel(),
    "arecord": lambda handle: asyncio.run(handle.arecord()),
    "acancel": lambda handle: asyncio.run(handle.acancel()),
}


@pytest.mark.parametrize("call", CALLS)
def test_asking_and_cancelling_end_by_the_deadline_while_the_store_does_not_answer(
    far: Far, call: str
) -> None:
    app = far.app(deadline=1.0)
    handle = doubling(far.app()).delay(21)
    far.freeze()
    with taking(1.0), pytest.raises(Unavailable, match="within 1 s"):
        CALLS[call](app.handle(handle.id))


# --- a file that is locked ---------------------------------------------------------------------


@contextmanager
def locked(path: str, *, exclusively: bool) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        if exclusively:
            connection.execute("pragma locking_mode = exclusive")
        connection.execute("begin immediate")
        connection.execute("create table if not exists marks (mark integer)")
        yield
        connection.execute("rollback")


def test_get_keeps_to_its_timeout_while_the_file_is_locked(sqlite: Place) -> None:
    before = sqlite.app()
    job = doubling(before).delay(21).id
    before.close()
    handle = sqlite.app().handle(job)
    with locked(sqlite.path, exclusively=True):
        with taking(1.0), pytest.raises(ResultTimeout, match="not finished within 1 s"):
            handle.get(timeout=1)
        with taking(1.0), pytest.raises(ResultTimeout, match="not finished within 1 s"):
            asyncio.run(handle.aget(timeout=1))


def test_get_keeps_to_its_timeout_while_a_cancellation_waits_for_the_lock(sqlite: Place) -> None:
    app = sqlite.app()
    handle = doubling(app).delay(21)
    with locked(sqlite.path, exclusively=False):
        cancelling = threading.Thread(target=_refused, args=(handle.cancel,))
        cancelling.start()
        with taking(1.0), pytest.raises(ResultTimeout):
            handle.get(timeout=1)
    cancelling.join(HANG)


def _refused(call: Callable[[], object]) -> None:
    try:
        call()
    except Unavailable:
        return


@pytest.mark.parametrize("call", CALLS)
def test_asking_and_cancelling_end_by_the_deadline_while_the_file_is_locked(
    sqlite: Place, call: str
) -> None:
    before = sqlite.app()
    job = doubling(before).delay(21).id
    before.close()
    handle = sqlite.app(deadline=1.0).handle(job)
    with locked(sqlite.path, exclusively=True), taking(1.0), pytest.raises(Unavailable):
        CALLS[call](handle)


# --- a message that is kept ---------------------------------------------------------------------

GETS: dict[str, Callable[[Any, float], Any]] = {
    "get": lambda handle, timeout: handle.get(timeout=timeout),
    "aget": lambda handle, timeout: asyncio.run(handle.aget(timeout=timeout)),
}


@contextmanager
def held_up(kind: str, url: str, namespace: str, folder: Path) -> Iterator[str]:
    """A backlog that cannot be published, because another process seems to publish it."""
    if kind == "disk":
        lock = folder / f"backlog.db.{namespace}.lock"
        lock.mkdir()
        yield f"sqlite:///{folder}/backlog.db"
        lock.rmdir()
        return
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        name = f'umbel backlog "{url.rpartition("schema=")[2]}"{namespace}'
        connection.execute("select pg_advisory_lock(hashtext(%s))", [name])
        yield url


@pytest.mark.parametrize("how", GETS)
@pytest.mark.parametrize("kind", ["disk", "postgres"])
def test_get_waits_for_a_message_in_the_backlog_although_the_store_does_not_know_it(
    distant: Place, postgres_url: str, proxy: Proxy, tmp_path: Path, kind: str, how: str
) -> None:
    with held_up(kind, postgres_url, distant.namespace, tmp_path) as backlog:
        app = distant.app(deadline=1.0, backlog=backlog)
        double = doubling(app)
        proxy.cut()
        handle = double.delay(21)
        proxy.mend()
        with pytest.raises(UnknownJob):
            _ = handle.state
        with taking(1.0), pytest.raises(ResultTimeout, match="not finished within 1 s"):
            GETS[how](handle, 1)
        with pytest.raises(UnknownJob):
            GETS[how](app.handle(fresh_id()), 10)
    with working(app):
        assert GETS[how](handle, HANG) == 42


@pytest.mark.parametrize("how", GETS)
@pytest.mark.parametrize("kind", ["memory", "disk", "postgres"])
def test_get_waits_for_a_message_in_the_backlog_through_the_outage(
    postgres: Place,
    distant: Place,
    postgres_url: str,
    proxy: Proxy,
    tmp_path: Path,
    kind: str,
    how: str,
) -> None:
    backlogs = {"disk": f"sqlite:///{tmp_path}/backlog.db", "postgres": postgres_url}
    app = distant.app(deadline=1.0, backlog=backlogs.get(kind, "memory"))
    double = doubling(app)
    double.delay(0)
    proxy.cut()
    handle = double.delay(21)
    with taking(1.0), pytest.raises(ResultTimeout, match="not finished within 1 s"):
        GETS[how](handle, 1)
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(GETS[how](handle, HANG)))
    waiting.start()
    proxy.mend()
    near = postgres.app()
    doubling(near)
    with working(near):
        waiting.join(HANG)
    assert answers == [42]


# --- get() in a task ---------------------------------------------------------------------------


def test_a_def_task_may_not_wait_for_a_job_and_may_read_one_that_has_ended(place: Place) -> None:
    app = place.app()
    double = doubling(app)

    @app.task(name="waits", retry=0)
    def waits(job: str) -> int:
        return int(app.handle(job).get(timeout=HANG))

    with working(app, cpu=1):
        with pytest.raises(ConfigurationError, match=r"get\(\) in waits.*current\.replace"):
            waits.delay(double.options(delay=3600).delay(1).id).get(timeout=HANG)
        ended = double.delay(2)
        ended.get(timeout=HANG)
        assert waits.delay(ended.id).get(timeout=HANG) == 4


def test_an_async_task_that_blocks_its_worker_is_warned_of_once(place: Place) -> None:
    app = place.app()
    double, heard = doubling(app), Heard(app)

    @app.task(name="blocks")
    async def blocks(number: int) -> int:
        return int(double.delay(number).get(timeout=HANG))

    @app.task(name="awaits")
    async def awaits(number: int) -> int:
        return int(await double.delay(number))

    with working(app), working(app, queues=("default",), io=0, cpu=1, name="other"):
        assert awaits.delay(1).get(timeout=HANG) == 2
        assert heard.all(events.BlockingGet) == []
        for number in range(2):
            assert blocks.delay(number).get(timeout=HANG) == 2 * number
    assert len(heard.all(events.BlockingGet, task="blocks")) == 1
