"""What the pages of tasks show."""

from __future__ import annotations

from typing import Any

import msgspec

from umbel.dashboard.pause_documents import pauses_of
from umbel.dashboard.views import Page, View, form_fields
from umbel.errors import UnknownTask
from umbel.operations import TaskView

_TASK_WINDOW = 1_000
"""The run times of tasks are those of so many finished jobs."""


async def read_tasks(view: View) -> dict[str, Any]:
    """Return the tasks: their options, run times and workers."""
    found = await view.operations.tasks(window=_TASK_WINDOW)
    return {"tasks": [_task(task, view) for task in found]}


def _task(task: TaskView, view: View) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(task)
    if (declared := view.app.registry.get(task.name)) is not None:
        document["signature"] = view.visibility.signature(declared.parameters.signature)
    return document


async def read_task(view: View) -> dict[str, Any]:
    """Return one task and the fields of the form that publishes a job of it."""
    name = view.path["name"]
    found = await view.operations.tasks(name, window=_TASK_WINDOW)
    if not found:
        raise UnknownTask(f"no task {name!r}")
    task = view.app.registry.get(name)
    return {
        "task": _task(found[0], view),
        "pauses": await pauses_of(view.operations, "task", name),
        "parameters": None if task is None else form_fields(task, view.visibility),
    }


TASK_PAGES = (
    Page(name="tasks", path="/tasks", title="Tasks", read=read_tasks, seconds=5),
    Page(name="task", path="/tasks/{name}", title="Task", read=read_task, seconds=0),
)
"""The pages of tasks."""
