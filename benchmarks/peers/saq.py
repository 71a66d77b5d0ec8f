"""SAQ: `saq` with ten jobs at once a process."""

from __future__ import annotations

from typing import Any

from saq import Queue

from benchmarks import probe
from benchmarks.peers.port import KIND, URL, Job, Peer

_SLOTS = 10
_RESULT_POLL = 0.005

queue = Queue.from_url(URL)


async def _coroutine(context: dict[str, Any], *, job: Job) -> None:
    probe.started(job)


def _thread(context: dict[str, Any], *, job: Job) -> None:
    probe.started(job)


settings = {
    "queue": queue,
    "functions": [("nothing", _coroutine if KIND == "async" else _thread)],
    "concurrency": _SLOTS,
}


class Adapter(Peer):
    async def open(self) -> None:
        await queue.connect()

    async def close(self) -> None:
        await queue.disconnect()

    async def asend(self, job: Job) -> None:
        await queue.enqueue("nothing", job=job)

    async def round_trip(self, job: Job) -> None:
        await queue.apply("nothing", timeout=10, poll_interval=_RESULT_POLL, job=job)
