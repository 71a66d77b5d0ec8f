"""Short names: a task by its last part, a job by either end of its id."""

from __future__ import annotations

import difflib

from umbel.errors import UnknownJob, UnknownTask
from umbel.operations import Operations
from umbel.stores import JobFilter
from umbel.tasks import Registry

_RECENT = 1_000
_SHORTEST = 4
_WHOLE = 36


def full_name(registry: Registry, name: str) -> str:
    """The one task with this name, or with this name at its end.

    Raises:
        UnknownTask: none has it, or several have.
    """
    if registry.get(name) is not None:
        return name
    found = sorted(task.name for task in registry if task.name.endswith(f".{name}"))
    if len(found) > 1:
        raise UnknownTask(f"{name!r} is the end of {', '.join(found)}: write the whole name")
    if found:
        return found[0]
    ends = {task.name.rpartition(".")[2]: task.name for task in registry}
    near = [ends[end] for end in difflib.get_close_matches(name, ends, n=3)]
    if not near:
        return registry.find(name).name
    raise UnknownTask(f"no task {name!r} is registered here; did you mean {', '.join(near)}?")


async def full_id(operations: Operations, given: str) -> str:
    """The one job with this id, or a recent one whose id begins or ends so.

    Raises:
        UnknownJob: none has it, or several have.
    """
    given = given.strip()
    if len(given) >= _WHOLE - 4:
        # Ours are lower case; a row that somebody else wrote may have any other.
        return given if await _exists(operations, given) else given.lower()
    given = given.lower()
    if len(given) < _SHORTEST:
        raise UnknownJob(f"{given!r}: give at least {_SHORTEST} letters of a job's id")
    recent = [record.id for record in await operations.jobs(JobFilter(limit=_RECENT))]
    found = [job for job in recent if job.startswith(given) or job.endswith(given)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UnknownJob(f"no job {given}… among the {_RECENT:,} newest; give its whole id")
    some = ", ".join(found[:3]) + (" …" if len(found) > 3 else "")
    raise UnknownJob(f"{given!r} fits {len(found)} jobs: {some}; give more of it")


async def _exists(operations: Operations, job: str) -> bool:
    try:
        await operations.job(job)
    except UnknownJob:
        return False
    return True
