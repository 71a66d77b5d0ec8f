"""RQ: `rq worker-pool` with workers that do not fork for each job."""

from __future__ import annotations

from collections.abc import Sequence

from redis import Redis
from rq import Queue

from benchmarks import probe
from benchmarks.peers.port import URL, Job, Peer

_TASK = "benchmarks.peers.rq.nothing"


def nothing(job: Job) -> None:
    probe.started(job)


class Adapter(Peer):
    async def open(self) -> None:
        self._connection = Redis.from_url(URL)
        self._queue = Queue("bench", connection=self._connection)

    async def close(self) -> None:
        self._connection.close()

    def send(self, job: Job) -> None:
        self._queue.enqueue(_TASK, job)

    async def bulk(self, jobs: Sequence[Job]) -> None:
        self._queue.enqueue_many([Queue.prepare_data(_TASK, args=(job,)) for job in jobs])

    async def round_trip(self, job: Job) -> None:
        if self._queue.enqueue(_TASK, job).latest_result(timeout=10) is None:
            raise TimeoutError("no result in 10 s")
