"""Celery: `celery worker` with its usual pool of processes, on Redis or RabbitMQ."""

from __future__ import annotations

from typing import Any

from celery import Celery

from benchmarks import probe
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


class Adapter(Peer):
    async def close(self) -> None:
        app.close()

    def send(self, job: Job) -> None:
        nothing.delay(job)

    async def round_trip(self, job: Job) -> None:
        result: Any = nothing.delay(job)
        result.get(timeout=10)
