"""What users can do with many jobs at once: those that they select, or all that match."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from umbel.backends import JobFilter
from umbel.dashboard.action_requests import (
    MAX_BULK_JOBS,
    Action,
    ActionRequest,
    changed,
    check_typed,
)
from umbel.dashboard.filters import JOB_FILTERS, job_search
from umbel.dashboard.rendering import plural
from umbel.errors import ConfigurationError, NotAllowed
from umbel.messages import Record, State
from umbel.operations import JobSearch, group_key

_BATCH_JOBS = 500
_MAX_READ_JOBS = 100_000
_MORE = " There are more; do it again for them."
_RETRIED = (State.BURIED, State.CANCELLED, State.EXPIRED)
_CANCELLED = tuple(state for state in State if not state.finished)


async def _retry_group(request: ActionRequest) -> str:
    ids, is_more = await _group(request)
    return await _retry_all(request, ids) + _MORE * is_more


async def _forget_group(request: ActionRequest) -> str:
    check_typed(request, request.get("task"))
    ids, is_more = await _group(request)
    deleted = 0
    for batch in _batches(ids):
        deleted += await request.operations.forget_possible(batch)
    return f"{changed(deleted, 'job was', 'jobs were')} deleted." + _MORE * is_more


async def _group(request: ActionRequest) -> tuple[list[str], bool]:
    """Return the buried jobs of a task with one error, and whether there are more than can be
    changed at once. Raises NotAllowed if many more match now than the user saw.
    """
    group = request.get("group")
    limit = request.number("limit", 1, MAX_BULK_JOBS)
    seen = request.number("count", 1, 1_000_000_000)
    wanted = JobFilter(states=(State.BURIED,), task=request.get("task"))
    ids, is_more = await _find_jobs(
        request, JobSearch(wanted=wanted), limit, lambda job: group_key(job) == group
    )
    expected = limit if request.fields.get("is_more") else min(limit, seen)
    _check_drift(len(ids), expected, seen)
    return ids, is_more and limit == MAX_BULK_JOBS


async def _retry_jobs(request: ActionRequest) -> str:
    ids, is_more = await _chosen_jobs(request, _RETRIED)
    return await _retry_all(request, ids) + _MORE * is_more


async def _cancel_jobs(request: ActionRequest) -> str:
    ids, is_more = await _chosen_jobs(request, _CANCELLED)
    cancelled = 0
    for batch in _batches(ids):
        cancelled += await request.operations.cancel_possible(batch, request.reason)
    done = changed(cancelled, "job is cancelled or was", "jobs are cancelled or were")
    return f"{done} asked to stop." + _MORE * is_more


async def _chosen_jobs(request: ActionRequest, states: tuple[State, ...]) -> tuple[list[str], bool]:
    """Return the jobs that a request names, or those that match its filter, and whether there are
    more. Raises NotAllowed if many more match now than the user saw.
    """
    if (named := request.optional("jobs")) is not None:
        if (count := len(ids := named.split())) > MAX_BULK_JOBS:
            raise ConfigurationError(
                f"jobs: {count:,} ids; give at most {MAX_BULK_JOBS:,}, and the others in further"
                " requests"
            )
        return ids, False
    if request.get("state") not in {state.value for state in states}:
        raise ConfigurationError(f"state: give one of {', '.join(states)}")
    seen = request.number("count", 1, 1_000_000_000)
    search = job_search(request.fields)
    ids, is_more = await _find_jobs(request, search, MAX_BULK_JOBS, lambda job: True)
    _check_drift(len(ids), MAX_BULK_JOBS if request.fields.get("is_more") else seen, seen)
    return ids, is_more


async def _find_jobs(
    request: ActionRequest, search: JobSearch, limit: int, matches: Callable[[Record], bool]
) -> tuple[list[str], bool]:
    """Return the ids of the first jobs that match, and whether there are more."""
    ids: list[str] = []
    after: str | None = ""
    read = 0
    while after is not None and len(ids) <= limit and read < _MAX_READ_JOBS:
        wanted = replace(search.wanted, limit=_BATCH_JOBS)
        part = replace(search, wanted=wanted, after=after, with_values=False)
        found = await request.operations.search(part)
        ids += [job.id for job in found.jobs if matches(job)]
        after, read = found.after, read + found.read
    return ids[:limit], len(ids) > limit or after is not None


def _check_drift(found: int, expected: int, seen: int) -> None:
    """Raise NotAllowed if no job matches any more, or many more than expected."""
    if not found or found > expected * 1.1 + 1:
        match = plural(found, "job matches", "jobs match")
        raise NotAllowed(f"{match} now; it was {seen:,} when you saw it. Reload the page.")


async def _retry_all(request: ActionRequest, ids: list[str]) -> str:
    queued = 0
    for batch in _batches(ids):
        queued += len(await request.operations.retry_possible(batch))
    return f"{changed(queued, 'job is', 'jobs are')} queued again."


def _batches(ids: list[str]) -> Iterator[list[str]]:
    return (ids[start : start + _BATCH_JOBS] for start in range(0, len(ids), _BATCH_JOBS))


BULK_ACTIONS = (
    Action(
        name="retry-group",
        summary="Queue the buried jobs with one error again.",
        act=_retry_group,
        fields=("task", "group", "limit", "count"),
        optional=("is_more",),
        subject=("task", "group"),
    ),
    Action(
        name="forget-group",
        summary="Delete the buried jobs with one error.",
        act=_forget_group,
        role="admin",
        fields=("task", "group", "limit", "count", "confirm"),
        optional=("is_more",),
        subject=("task", "group"),
    ),
    Action(
        name="retry-jobs",
        summary="Queue jobs again: those with these ids, or all that match a filter.",
        act=_retry_jobs,
        optional=("jobs", "state", *JOB_FILTERS, "count", "is_more"),
        subject=("jobs",),
        filters=("state", *JOB_FILTERS),
    ),
    Action(
        name="cancel-jobs",
        summary="Cancel jobs: those with these ids, or all that match a filter.",
        act=_cancel_jobs,
        optional=("jobs", "state", *JOB_FILTERS, "count", "is_more", "reason"),
        subject=("jobs",),
        filters=("state", *JOB_FILTERS),
    ),
)
"""The actions on many jobs."""
