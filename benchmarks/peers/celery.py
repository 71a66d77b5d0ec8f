"""Celery: `celery worker` with its usual pool of processes, on Redis or RabbitMQ."""

from __future__ import annotations

from typing import Any

from celery import Celery, chain, chord
from kombu.transport.redis import Channel
from kombu.utils.json import dumps

from benchmarks import probe, sizes
from benchmarks.peers.port import CONFIRM, RESULTS, URL, Job, Peer


def _backend() -> str | None:
    if not RESULTS:
        return None
    return "rpc://" if URL.startswith("amqp") else URL


app = Celery("bench", broker=URL, backend=_backend())
app.conf.broker_connection_retry_on_startup = True
if CONFIRM:
    app.conf.broker_transport_options = {"confirm_publish": True}


@app.task(name="nothing", ignore_result=not RESULTS)  # type: ignore[untyped-decorator]
def nothing(job: Job) -> None:
    probe.started(job)


@app.task(name="step")  # type: ignore[untyped-decorator]
def step(number: int) -> int:
    return number + 1


@app.task(name="total")  # type: ignore[untyped-decorator]
def total(numbers: list[int]) -> int:
    return sum(numbers)


def nested(depth: int) -> Any:
    """Chords in chords, with two members each."""
    if depth == 0:
        return step.si(0)
    return chord([nested(depth - 1), nested(depth - 1)], total.s())


if sizes.FOLDER:
    put = Channel._put

    def noting(self: Any, queue: str, message: Any, **options: Any) -> None:
        sizes.note(len(dumps(message)))
        put(self, queue, message, **options)

    Channel._put = noting


class Adapter(Peer):
    async def close(self) -> None:
        app.close()

    def send(self, job: Job) -> None:
        nothing.delay(job)

    def canvas(self, form: str, count: int) -> Any:
        if form == "chain":
            return chain(step.s(0), *(step.s() for _ in range(count - 1))).delay()
        if form == "chord":
            return chord((step.si(0) for _ in range(count)), total.s()).delay()
        return nested(count).delay()

    def result(self, handle: Any, seconds: float) -> int:
        found: int = handle.get(timeout=seconds)
        return found

    async def round_trip(self, job: Job) -> None:
        result: Any = nothing.delay(job)
        result.get(timeout=10)
