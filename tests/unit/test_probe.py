"""The probe: honest about consuming, and deaf to garbage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from umbel.backends import Demand
from umbel.errors import ConfigurationError
from umbel.observability.metrics import HELP, Metrics
from umbel.observability.probe import Probe
from umbel.telemetry import events
from umbel.testing.clock import FakeClock

WHO: dict[str, Any] = {"job": "j-1", "task": "tasks.add", "attempt": 1}


class FakeWorker:
    """What a probe sees of a worker, as attributes a test may set."""

    name = "w"
    incarnation = "i"
    running = 0
    lease = 10.0

    def __init__(self) -> None:
        self.paused: tuple[str, ...] = ()
        self.heartbeat_alive = True
        self.heartbeat_age: float | None = 1.0
        self.room = Demand.of(io=5, cpu=5)
        self.fetched = 0
        self.told_to_stop = False

    def fetches(self) -> int:
        return self.fetched

    def free(self) -> Demand:
        return self.room

    def stopping(self) -> bool:
        return self.told_to_stop


def metrics() -> Metrics:
    return Metrics(lambda task: task == WHO["task"])


class Scene:
    def __init__(self) -> None:
        self.worker = FakeWorker()
        self.metrics = metrics()
        self.clock = FakeClock()
        self.probe = Probe(self.worker, self.metrics, self.clock)
        self.worker.fetched += 1
        self.probe.readiness()
        self.port = 0

    async def send(self, data: bytes, *, hang_up: bool = False) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        if hang_up:
            writer.write_eof()
        answer = await reader.read()
        writer.close()
        return answer

    async def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        answer = await self.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = answer.decode().partition("\r\n\r\n")
        return int(head.split()[1]), body


@asynccontextmanager
async def serving() -> AsyncIterator[Scene]:
    scene = Scene()
    scene.port = await scene.probe.start("127.0.0.1", 0)
    try:
        yield scene
    finally:
        await scene.probe.stop()


def probing(test: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with serving() as scene:
            await test(scene)

    asyncio.run(run())


def test_a_worker_that_consumes_is_ready() -> None:
    async def look(scene: Scene) -> None:
        status, body = await scene.get("/readyz")
        assert status == 200
        told = json.loads(body)
        assert told["ready"] is True
        assert {"last_fetch", "loop_lag", "running", "paused"} <= told.keys()

    probing(look)


def _stopping(scene: Scene) -> None:
    scene.worker.told_to_stop = True


def _dead(scene: Scene) -> None:
    scene.worker.heartbeat_alive = False


def _unbeaten(scene: Scene) -> None:
    scene.worker.heartbeat_age = None


def _late(scene: Scene) -> None:
    scene.worker.heartbeat_age = 10.1


def _not_fetching(scene: Scene) -> None:
    scene.clock.advance(21)


def _cut_off(scene: Scene) -> None:
    scene.metrics.count(events.Unreachable(service="consumer", error="gone"))


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        (_stopping, "stopping"),
        (_dead, "the heartbeat thread has stopped"),
        (_unbeaten, "no heartbeat yet"),
        (_late, "the last heartbeat is too long ago"),
        (_not_fetching, "the last fetch is too long ago"),
        (_cut_off, "consumer: the server cannot be reached"),
    ],
)
def test_a_worker_that_does_not_consume_is_not_ready_and_says_why(
    trouble: Callable[[Scene], None], why: str
) -> None:
    async def look(scene: Scene) -> None:
        trouble(scene)
        status, body = await scene.get("/readyz")
        assert status == 503
        assert json.loads(body)["why"] == [why]

    probing(look)


def test_a_full_worker_that_does_not_fetch_is_ready() -> None:
    async def look(scene: Scene) -> None:
        scene.worker.room = Demand()
        scene.clock.advance(1_000)
        assert (await scene.get("/readyz"))[0] == 200

    probing(look)


def test_a_server_that_answers_again_makes_it_ready_again() -> None:
    async def look(scene: Scene) -> None:
        _cut_off(scene)
        scene.metrics.count(events.Reachable(service="consumer"))
        assert (await scene.get("/readyz"))[0] == 200

    probing(look)


def test_a_worker_without_heartbeats_is_not_alive() -> None:
    async def look(scene: Scene) -> None:
        assert (await scene.get("/livez"))[0] == 200
        _stopping(scene)
        assert (await scene.get("/livez"))[0] == 200, "a stopping worker lives"
        _dead(scene)
        assert (await scene.get("/livez"))[0] == 503

    probing(look)


def test_other_pages_and_methods_are_refused() -> None:
    async def look(scene: Scene) -> None:
        assert (await scene.get("/"))[0] == 404
        assert (await scene.get("/livez", "POST"))[0] == 405
        assert (await scene.get("/nothing", "POST"))[0] == 404
        assert (await scene.get("/livez?verbose=1"))[0] == 200
        assert await scene.get("/livez", "HEAD") == (200, "")

    probing(look)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/9\r\n\r\n",
        b"\x00" * 100_000,
        b"GET /livez HTTP/1.1\r\nX: " + b"x" * 50_000 + b"\r\n\r\n",
    ],
)
def test_garbage_is_answered_with_400_and_has_no_other_effect(garbage: bytes) -> None:
    async def look(scene: Scene) -> None:
        try:
            answer = await scene.send(garbage, hang_up=True)
        except ConnectionError:
            answer = b""  # it hung up on us while we were still talking
        assert not answer or answer.startswith(b"HTTP/1.1 400")
        assert (await scene.get("/livez"))[0] == 200

    probing(look)


def test_a_silent_client_does_not_block_others() -> None:
    async def look(scene: Scene) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", scene.port) for _ in range(20)]
        assert (await scene.get("/livez"))[0] == 200
        for _, writer in silent:
            writer.close()

    probing(look)


@pytest.mark.parametrize("said", [b"", b"GET /livez HTTP/1.1\r\nX: "])
def test_any_number_of_slow_clients_keeps_no_supervisor_from_its_answer(said: bytes) -> None:
    async def look(scene: Scene) -> None:
        slow = [await asyncio.open_connection("127.0.0.1", scene.port) for _ in range(300)]
        for _, writer in slow:
            writer.write(said)
        async with asyncio.timeout(3):  # less than a slow client is given
            for _ in range(5):
                assert (await scene.get("/livez"))[0] == 200
                assert (await scene.get("/readyz"))[0] == 200
        for _, writer in slow:
            writer.close()

    probing(look)


def test_an_address_that_is_taken_is_an_error_that_names_it() -> None:
    async def look(scene: Scene) -> None:
        other = Probe(FakeWorker(), metrics(), scene.clock)
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{scene.port}"):
            await other.start("127.0.0.1", scene.port)

    probing(look)


# --- metrics ---------------------------------------------------------------------------------


def test_runs_are_counted_by_task_and_outcome() -> None:
    counted = metrics()
    counted.count(events.JobStarted(**WHO))
    counted.count(events.JobSucceeded(**WHO, seconds=0.5))
    counted.count(events.JobSucceeded(**WHO, seconds=0.25))
    counted.count(events.JobRetried(**WHO, seconds=1, error="x", delay=1))
    counted.count(events.OutcomeRefused(**WHO))
    lines = counted.render().splitlines()
    assert 'umbel_jobs_started_total{task="tasks.add"} 1' in lines
    assert 'umbel_jobs_total{task="tasks.add",outcome="succeeded"} 2' in lines
    assert 'umbel_jobs_total{task="tasks.add",outcome="retried"} 1' in lines
    assert 'umbel_jobs_total{task="tasks.add",outcome="refused"} 1' in lines
    assert 'umbel_job_seconds_sum{task="tasks.add"} 1.75' in lines
    assert 'umbel_job_seconds_count{task="tasks.add"} 3' in lines


def test_every_metric_has_its_help_and_type_before_it() -> None:
    async def look(scene: Scene) -> None:
        scene.metrics.count(events.JobsRecovered(jobs=3))
        scene.metrics.count(events.WorkerLost(worker="w", incarnation="i"))
        _, body = await scene.get("/metrics")
        typed: set[str] = set()
        for line in body.splitlines():
            if line.startswith("# TYPE "):
                typed.add(line.split()[2])
            elif not line.startswith("#"):
                name = line.split("{")[0].split()[0]
                assert name in typed, line
                assert name in HELP
        assert "umbel_jobs_recovered_total 3" in body
        assert "umbel_running 0" in body

    probing(look)


def test_label_values_are_escaped() -> None:
    counted = Metrics(lambda task: True)
    counted.count(events.JobRejected(job="j", task='a"b\\c\nd', attempt=1, reason="x"))
    assert r'task="a\"b\\c\nd"' in counted.render()


def test_tasks_that_the_application_does_not_have_share_one_series() -> None:
    counted = metrics()
    for number in range(1_000):
        counted.count(events.JobRejected(job="j", task=f"t{number}", attempt=1, reason="x"))
    samples = [line for line in counted.render().splitlines() if not line.startswith("#")]
    assert samples == ['umbel_jobs_total{task="unknown",outcome="rejected"} 1000']
