"""Taskiq: `taskiq worker` with the brokers that acknowledge, on Redis, RabbitMQ or NATS."""

from __future__ import annotations

from taskiq import AsyncBroker
from taskiq_aio_pika import AioPikaBroker
from taskiq_nats import PullBasedJetStreamBroker
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks import probe
from benchmarks.peers.port import KIND, NAME, RESULTS, STORE, URL, VARIANT, Job, Peer

_POLL = 0.002
"""Seconds between its looks for a result: there is no other way to wait."""
_KEPT = 60
_BATCH = 100


def _broker() -> AsyncBroker:
    if URL.startswith("amqp"):
        return AioPikaBroker(URL, qos=_BATCH)
    if URL.startswith("nats"):
        name = f"{NAME}-taskiq"
        return PullBasedJetStreamBroker(
            URL,
            stream_name=name,
            durable=name,
            subject=f"{name}.jobs",
            pull_consume_batch=_BATCH if VARIANT == "in batches" else 1,
        )
    return RedisStreamBroker(URL)


broker = _broker()
if RESULTS:
    broker = broker.with_result_backend(RedisAsyncResultBackend(STORE or URL, result_ex_time=_KEPT))


async def _coroutine(job: Job) -> None:
    probe.started(job)


def _thread(job: Job) -> None:
    probe.started(job)


nothing = broker.task(task_name="nothing")(_coroutine if KIND == "async" else _thread)


class Adapter(Peer):
    async def open(self) -> None:
        await broker.startup()

    async def close(self) -> None:
        await broker.shutdown()

    async def asend(self, job: Job) -> None:
        await nothing.kiq(job)

    async def round_trip(self, job: Job) -> None:
        task = await nothing.kiq(job)
        await task.wait_result(check_interval=_POLL, timeout=10)
