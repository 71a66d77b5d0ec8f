"""A transport that accepts connections and does not answer, beside a healthy store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from chaos.transport_queues import NatsStreams, RabbitQueues
from integration.running import Proxy, finished, working
from umbel import Handle, State, Umbel
from umbel.backends.transport import Lane
from umbel.messages import fresh_id

HOST = "127.0.0.1"
PORTS = {"rabbitmq": 5672, "nats": 4222, "redis": 6379}
URLS = {
    "rabbitmq": "amqp://guest:guest@127.0.0.1:{}/%2F",
    "nats": "nats://127.0.0.1:{}",
    "redis": "redis://127.0.0.1:{}/0",
}
DEADLINE = 4.0
LANES = [Lane("default", kind) for kind in ("io", "cpu", "")]


class Pair:
    """A transport behind a proxy, and a store, in a namespace of one test."""

    def __init__(self, carrier: str, store: str) -> None:
        self.namespace = f"t{fresh_id()}"
        self.proxy = Proxy(HOST, PORTS[carrier])
        self._carrier = carrier
        self._store = store
        self._closing = ExitStack()

    def app(self, **settings: Any) -> Umbel:
        """Return an application with one task, ``echo``."""
        app = Umbel(
            broker=URLS[self._carrier].format(self.proxy.port),
            store=self._store,
            namespace=self.namespace,
            deadline=DEADLINE,
            **settings,
        )
        self._closing.callback(app.close)

        @app.task(name="echo")
        async def echo(number: int) -> int:
            return number

        return app

    def close(self) -> None:
        self.proxy.mend()
        self._closing.close()
        self.proxy.close()
        for lane in LANES:
            if self._carrier == "rabbitmq":
                from umbel.backends.rabbitmq.queue_names import queue_name

                RabbitQueues(PORTS["rabbitmq"], queue_name, self.namespace).delete(lane)
            elif self._carrier == "nats":
                NatsStreams(f"nats://{HOST}:{PORTS['nats']}", self.namespace).delete(lane)
        _forget_on_redis(self.namespace)


def _forget_on_redis(namespace: str) -> None:
    import redis

    with redis.Redis(HOST, PORTS["redis"]) as client:
        for key in client.scan_iter(match=f"umbel:{{{namespace}*", count=1000):
            client.delete(key)


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind: str = request.param
    if kind == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return f"sqlite:///{tmp_path}/jobs.db" if kind == "sqlite" else f"redis://{HOST}:6379/0"


@pytest.fixture
def pair(request: pytest.FixtureRequest, store: str) -> Iterator[Pair]:
    pair = Pair(request.param, store)
    yield pair
    pair.close()


EVERY_PAIR = [
    pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"], indirect=True),
    pytest.mark.parametrize("pair", ["rabbitmq", "nats", "redis"], indirect=True),
]


def every_pair(test: Callable[..., None]) -> Callable[..., None]:
    for mark in EVERY_PAIR:
        test = mark(test)
    return test


def sync_and_async(app: Umbel) -> list[Handle[Any]]:
    """Publish a job from sync code and one from async code."""
    echo = app.registry.find("echo")
    return [echo.delay(1), asyncio.run(echo.adelay(2))]


@every_pair
@pytest.mark.parametrize("backlog", ["none", "memory"])
def test_the_store_accepts_jobs_within_the_deadline_while_the_transport_is_silent(
    pair: Pair, backlog: str
) -> None:
    app = pair.app(backlog=backlog)
    handles = sync_and_async(app)  # while all is well: connections are open and lanes are made
    pair.proxy.silence()
    first = sync_and_async(app)
    began = time.monotonic()
    following = [handle for _ in range(5) for handle in sync_and_async(app)]
    seconds = time.monotonic() - began
    # In the store, not in memory: an id that is not there would be unknown.
    assert {handle.state for handle in (*first, *following)} == {State.QUEUED}
    assert seconds < 5 * DEADLINE, "each of ten calls has waited for the transport again"
    pair.proxy.mend()
    with working(app):
        results = [finished(handle).state for handle in (*handles, *first, *following)]
    assert {*results} == {State.SUCCEEDED}


@every_pair
def test_a_transport_that_was_never_reached_keeps_no_job_from_the_store(pair: Pair) -> None:
    pair.proxy.silence()
    app = pair.app(backlog="none")
    assert {handle.state for handle in sync_and_async(app)} == {State.QUEUED}


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
@pytest.mark.parametrize("pair", ["nats"], indirect=True)
def test_a_silent_transport_of_one_queue_does_not_hold_up_another_queue(
    pair: Pair,
) -> None:
    pair.proxy.silence()
    app = pair.app(backlog="none", brokers={"fast": URLS["redis"].format(PORTS["redis"])})

    @app.task(name="fast", queue="fast")
    async def fast() -> str:
        return "done"

    assert {handle.state for handle in sync_and_async(app)} == {State.QUEUED}
    with working(app, queues=("fast",)):
        assert fast.delay().get(timeout=60) == "done"
