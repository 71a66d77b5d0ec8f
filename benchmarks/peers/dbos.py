"""DBOS: a queue with fast polling, 64 workflows at once."""

from __future__ import annotations

import os
import signal
import threading

from dbos import DBOS, DBOSClient, EnqueueOptions

from benchmarks import probe
from benchmarks.peers.port import KIND, URL, Job, Peer

_QUEUE = "bench"
_QUEUE_POLL = 0.05
_RESULT_POLL = 0.01
_SLOTS = 64
_CALLERS = 20
_TARGET: EnqueueOptions = {"workflow_name": "nothing", "queue_name": _QUEUE}


async def _coroutine(job: Job) -> None:
    probe.started(job)


def _thread(job: Job) -> None:
    probe.started(job)


DBOS.workflow(name="nothing")(_coroutine if KIND == "async" else _thread)


def _launch() -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": URL,
            "log_level": "ERROR",
            # Two workers of one name would take each other's workflows for their own of before.
            "executor_id": str(os.getpid()),
            # Else it is a hash of the code, and only workers of the newest version get jobs.
            "application_version": "bench",
        }
    )
    DBOS.launch()
    DBOS.register_queue(_QUEUE, worker_concurrency=_SLOTS, polling_interval_sec=_QUEUE_POLL)


class Adapter(Peer):
    def install(self) -> None:
        _launch()
        DBOS.destroy()

    async def open(self) -> None:
        self._client = DBOSClient(system_database_url=URL, system_database_pool_size=_CALLERS)

    async def close(self) -> None:
        self._client.destroy()

    def send(self, job: Job) -> None:
        self._client.enqueue(_TARGET, job)

    async def round_trip(self, job: Job) -> None:
        handle = await self._client.enqueue_async(_TARGET, job)
        await handle.get_result(polling_interval_sec=_RESULT_POLL)

    def work(self) -> None:
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        _launch()
        stop.wait()
        DBOS.destroy(workflow_completion_timeout_sec=0)
