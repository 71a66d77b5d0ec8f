"""Deletes the jobs of one key, and everything that belongs to a namespace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from umbel.backends import NamespaceEraser, Roles
from umbel.messages import State
from umbel.operations.job_search import FoundJobs, JobSearch

_BATCH_ROWS = 10_000
_BATCH_JOBS = 500

Progress = Callable[[int], None]
"""Called with the number of rows or jobs that have been deleted so far."""


class ErasedJobs(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the jobs that were to be deleted."""

    deleted: int = 0
    cancelled: int = 0
    """How many of these had not finished."""
    stopping: int = 0
    """Jobs that were running. Their workers were asked to stop them; delete them afterwards."""


async def erase_namespace(
    eraser: NamespaceEraser, queues: Sequence[str], progress: Progress
) -> int:
    """Delete everything in batches, the queues first; return how many rows or keys there were."""
    await eraser.remove_queues(queues)
    gone = 0
    while True:
        some = await eraser.delete(_BATCH_ROWS)
        gone += some
        progress(gone)
        if some < _BATCH_ROWS:
            return gone


async def erase_jobs(
    roles: Roles,
    find: Callable[[JobSearch], Awaitable[FoundJobs]],
    search: JobSearch,
    progress: Progress,
) -> ErasedJobs:
    """Cancel the jobs that match and have not finished, and delete all that have finished."""
    wanted = msgspec.structs.replace(search.wanted, limit=_BATCH_JOBS)
    search = msgspec.structs.replace(search, wanted=wanted)
    after: str | None = search.after
    deleted = cancelled = stopping = 0
    while after is not None:
        page = await find(msgspec.structs.replace(search, after=after))
        live = [job.id for job in page.jobs if not job.state.finished]
        states = await roles.control.cancel(live, "deleted by an operator") if live else {}
        running = [job for job, state in states.items() if state is State.RUNNING]
        stopping += len(running)
        cancelled += sum(state is State.CANCELLED for state in states.values())
        left = {job.id for job in page.jobs} - {*running}
        deleted += await roles.records.remove([*left]) if left else 0
        progress(deleted)
        after = page.after
    return ErasedJobs(deleted=deleted, cancelled=cancelled, stopping=stopping)
