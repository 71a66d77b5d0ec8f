"""What the pages of jobs show."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from umbel.dashboard.action_requests import MAX_BULK_JOBS
from umbel.dashboard.filters import JOB_FILTERS, STATES, job_search
from umbel.dashboard.graph_pages import graph_place
from umbel.dashboard.views import Page, View
from umbel.errors import ConfigurationError
from umbel.messages import ROUTE_PREFIX, Record, State, route_key
from umbel.operations import JobSearch, Operations, body_value

_SEARCH_WINDOW = 20_000
_SEARCH_SECONDS = 0.1
_COUNT_SECONDS = 3.0


async def read_jobs(view: View) -> dict[str, Any]:
    """Return the newest jobs that match, and where the search continues."""
    query = view.query
    visibility = view.visibility
    has_texts = any(query.get(name, "").strip() for name in ("error", "text"))
    if has_texts and not visibility.may_search_texts:
        raise ConfigurationError(
            "error, text: viewers may not search texts while fields are masked; ask an operator"
        )
    search = replace(job_search(query), window=_SEARCH_WINDOW)
    part = replace(search, after=query.get("after", ""), seconds=_SEARCH_SECONDS)
    found = await view.operations.search(part)
    return {
        "jobs": [visibility.row(job) for job in found.jobs],
        "state": query.get("state", "") or "all",
        "filters": {name: query.get(name, "") for name in JOB_FILTERS},
        "after": found.after,
        "read": found.read,
        "is_cut": found.is_cut,
        "matching": await _count(view.operations, search) if query.get("count") else None,
        "states": STATES,
        "tasks": sorted(task.name for task in view.app.registry),
    }


async def _count(operations: Operations, search: JobSearch) -> dict[str, Any]:
    """Return how many jobs match, up to the number that an action changes."""
    wanted = replace(search.wanted, limit=MAX_BULK_JOBS)
    counted = replace(search, wanted=wanted, seconds=_COUNT_SECONDS, with_values=False)
    found = await operations.search(counted)
    return {"count": len(found.jobs), "is_more": found.after is not None}


async def read_job(view: View) -> dict[str, Any]:
    """Return one job with its history, its steps, and why it does not start."""
    operations = view.operations
    record = await operations.job(view.path["id"])
    return {
        "job": view.visibility.job(record),
        "timeline": _timeline(record),
        "route": _route_of(record),
        "graph": graph_place(record),
        "hindrances": await operations.hindrances(record, view.address),
        "steps": [
            {name: getattr(step, name) for name in ("number", "name", "seconds", "finished")}
            for step in await operations.steps(record.id)
        ]
        if view.visibility.may_search_texts
        else [],
        "editable": body_value(record.body, view.app.codec) if view.user.may("operator") else None,
    }


def _route_of(record: Record) -> str | None:
    """Return the key of the route by which a live job goes to its worker; None if it has none."""
    gates = (record.gate or "", *(slot.gate for slot in record.slots))
    return next((route_key(gate) for gate in gates if gate.startswith(ROUTE_PREFIX)), None)


def _timeline(record: Record) -> list[dict[str, Any]]:
    """Return the waits and runs of a job in order; no wait is shorter than 0 s."""
    parts: list[dict[str, Any]] = [{"what": "published", "at": record.created}]
    before = record.created
    for attempt in record.attempts:
        parts.append({"what": "wait", "seconds": max(0.0, attempt.started - before)})
        parts.append(
            {
                "what": "run",
                "number": attempt.number,
                "ended": attempt.ended,
                "seconds": max(0.0, attempt.finished - attempt.started),
            }
        )
        before = attempt.finished
    state = record.state
    if not state.finished:
        since = record.started if state is State.RUNNING else before
        parts.append({"what": state.value, "since": since, "gate": record.gate})
    else:
        parts.append({"what": state.value, "at": record.finished})
    return parts


JOB_PAGES = (
    Page(
        name="jobs",
        path="/jobs",
        title="Jobs",
        read=read_jobs,
        parameters=("state", *JOB_FILTERS, "after", "count"),
    ),
    Page(name="job", path="/jobs/{id}", title="Job", read=read_job),
)
"""The pages of jobs."""
