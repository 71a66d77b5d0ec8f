"""What the pages of schedules show."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from umbel.dashboard.views import Page, View


async def read_schedules(view: View) -> dict[str, Any]:
    """Return all schedules, the next one first."""
    found = [
        {
            "name": one.name,
            "state": one.state,
            "task": one.task,
            "rule": one.plan.timing.describe(),
            "origin": one.origin,
            "next": one.next,
            "last": one.last,
            "published": one.published,
            "missed": one.missed,
            "skipped": one.skipped,
            "changes": sorted(one.changes),
            "changed_by": one.changed_by,
            "reason": one.reason,
        }
        for one in await view.operations.schedules.all()
    ]
    return {"schedules": sorted(found, key=lambda one: (one["next"] is None, one["next"] or 0))}


async def read_schedule(view: View) -> dict[str, Any]:
    """Return one schedule with its next times and its last ticks."""
    name = view.path["name"]
    schedules = view.operations.schedules
    one = await schedules.show(name)
    history = await schedules.history(name)
    times = await schedules.next_times(name, 5)
    return {
        "name": name,
        "schedule": msgspec.to_builtins(one),
        "rule": one.plan.timing.describe(),
        "zone": one.plan.timing.zone,
        "defined_rule": one.defined.timing.describe(),
        "next_times": times,
        "local_times": [
            datetime.fromtimestamp(time, one.plan.timing.tzinfo).isoformat(" ") for time in times
        ],
        "history": [
            msgspec.to_builtins(line) | {"reason": view.visibility.error(line.reason)}
            for line in history[:20]
        ],
    }


SCHEDULE_PAGES = (
    Page(name="schedules", path="/schedules", title="Schedules", read=read_schedules, seconds=5),
    Page(
        name="schedule", path="/schedules/{name}", title="Schedule", read=read_schedule, seconds=5
    ),
)
"""The pages of schedules."""
