"""What the first page shows: problems, totals, and what happened lately."""

from __future__ import annotations

from typing import Any, cast, get_args

import msgspec

from umbel.backends import JobFilter
from umbel.charts import ChartRange, TaskTotals
from umbel.dashboard.buried_page import group_documents
from umbel.dashboard.pause_documents import pause_document
from umbel.dashboard.views import Page, View
from umbel.operations import read_overview as overview


async def read_overview(view: View) -> dict[str, Any]:
    """Return problems, totals, and what happened lately."""
    span = view.choice("range", get_args(ChartRange), "15m")
    found = await overview(view.operations, cast(ChartRange, span), view.address)
    tasks = found.numbers.tasks
    running = found.running_workers
    return {
        "problems": msgspec.to_builtins(found.problems),
        "totals": found.totals,
        "workers": len(running),
        "slots": sum(worker.io + worker.cpu for worker in running),
        "buried": found.buried,
        "buried_is_more": found.buried_is_more,
        "groups": group_documents(found.groups[:5], view),
        "pauses": [pause_document(pause) for pause in found.pauses],
        "range": span,
        "ranges": get_args(ChartRange),
        "points": msgspec.to_builtins(found.numbers.points),
        "slowest": msgspec.to_builtins(sorted(tasks, key=_slowness)[:5]),
        "failing": msgspec.to_builtins(sorted(filter(_fails, tasks), key=_failing)[:5]),
        "has_jobs": bool(found.queues) or bool(await view.operations.jobs(JobFilter(limit=1))),
        "tasks": [task.name for task in view.app.registry][:50],
    }


def _slowness(task: TaskTotals) -> float:
    return -(task.p95 or 0.0)


def _fails(task: TaskTotals) -> bool:
    return task.failures > 0


def _failing(task: TaskTotals) -> float:
    return -task.failures / task.runs


OVERVIEW_PAGE = Page(
    name="overview", path="/", title="Overview", read=read_overview, parameters=("range",)
)
