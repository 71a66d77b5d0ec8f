"""Dramatiq: `dramatiq` with eight threads a process, on Redis or RabbitMQ."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks import probe
from benchmarks.peers.port import CONFIRM, RESULTS, STORE, URL, Job, Peer


def _broker() -> dramatiq.Broker:
    if URL.startswith("amqp"):
        return RabbitmqBroker(url=URL, confirm_delivery=CONFIRM)
    return RedisBroker(url=URL)


broker = _broker()
if RESULTS:
    broker.add_middleware(Results(backend=RedisBackend(url=STORE or URL)))
dramatiq.set_broker(broker)
_OPTIONS = {"store_results": True} if RESULTS else {}


@dramatiq.actor(actor_name="nothing", **_OPTIONS)
def nothing(job: Job) -> None:
    probe.started(job)


class Adapter(Peer):
    async def close(self) -> None:
        broker.close()

    def send(self, job: Job) -> None:
        nothing.send(job)

    async def round_trip(self, job: Job) -> None:
        nothing.send(job).get_result(block=True, timeout=10_000)
