"""What the pages of queues and workers show."""

from __future__ import annotations

from typing import Any

import msgspec

from umbel.backends import JobFilter
from umbel.dashboard.filters import PAGE_JOBS
from umbel.dashboard.pause_documents import pause_document
from umbel.dashboard.views import Page, View
from umbel.messages import Record, State
from umbel.operations import LIVE_STATES, JobSearch, QueueView, WorkerView

_WORKER_JOBS = 20


async def read_queues(view: View) -> dict[str, Any]:
    """Return all queues, the oldest waiting job first."""
    queues = await view.operations.queues()
    found = [_queue(queue) for queue in queues]
    return {"queues": sorted(found, key=lambda one: (-(one["oldest"] or 0.0), one["name"]))}


async def read_queue(view: View) -> dict[str, Any]:
    """Return one queue and its newest live jobs."""
    name = view.path["name"]
    queues = [queue for queue in await view.operations.queues() if queue.name == name]
    live = tuple(state for state in State if not state.finished)
    jobs = await view.operations.search(
        JobSearch(wanted=JobFilter(queue=name, states=live, limit=PAGE_JOBS))
    )
    visibility = view.visibility
    return {
        "name": name,
        "queue": _queue(queues[0]) if queues else None,
        "jobs": [visibility.row(job) for job in jobs.jobs],
    }


def _queue(queue: QueueView) -> dict[str, Any]:
    return {
        **{name: getattr(queue, name) for name in ("name", *LIVE_STATES, "oldest", "workers")},
        "pauses": [pause_document(pause) for pause in queue.pauses],
    }


async def read_workers(view: View) -> dict[str, Any]:
    """Return the workers and the jobs that they run."""
    workers = await view.operations.workers()
    retiring = {one.index for one in await view.operations.worker_indexes() if one.retiring}
    running = await view.operations.jobs(JobFilter(states=(State.RUNNING,), limit=500))
    by_worker: dict[str, list[Record]] = {}
    for job in running:
        by_worker.setdefault(job.worker or "", []).append(job)
    pauses = [one for one in await view.operations.pauses() if one.scope in ("worker", "all")]
    return {
        "pauses": [pause_document(pause) for pause in pauses],
        "workers": [
            {
                **msgspec.to_builtins(worker),
                "slots": worker.io + worker.cpu,
                "retiring": worker.index in retiring,
                "pauses": [pause_document(one) for one in pauses if one.name == worker.name],
                **_running_jobs(by_worker.get(worker.name, []), worker),
            }
            for worker in workers
        ],
    }


def _running_jobs(jobs: list[Record], worker: WorkerView) -> dict[str, Any]:
    """Return the first jobs that a worker runs, and its busy slots by kind."""
    cpu = sum(job.kind == "cpu" for job in jobs)
    return {
        "jobs": [
            {"id": job.id, "task": job.task, "started": job.started, "queue": job.queue}
            for job in jobs[:_WORKER_JOBS]
        ],
        "more_jobs": max(0, worker.running - _WORKER_JOBS),
        "busy_io": max(0, worker.running - cpu),
        "busy_cpu": cpu,
    }


QUEUE_PAGES = (
    Page(name="queues", path="/queues", title="Queues", read=read_queues),
    Page(name="queue", path="/queues/{name}", title="Queue", read=read_queue),
    Page(name="workers", path="/workers", title="Workers", read=read_workers),
)
"""The pages of queues and workers."""
