"""What the page of deployments shows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import anyio
import msgspec

from umbel.dashboard.deployment_actions import has_no_command
from umbel.dashboard.views import Page, View
from umbel.tasks import Task
from umbel.tasks.fingerprints import fingerprint, python_version


async def read_deployments(view: View) -> dict[str, Any]:
    """Return the last deployment, its workers, and the jobs in its way."""
    code = await anyio.to_thread.run_sync(_fingerprints, tuple(view.app.registry))
    status = await view.operations.deploy.status(code or None, python_version())
    return {
        "code": msgspec.to_builtins(status.code),
        "deployment": msgspec.to_builtins(status.deployment),
        "is_under_way": status.deployment is not None and status.deployment.is_under_way,
        "is_ready": status.ready,
        "has_no_command": has_no_command(status.deployment),
        "workers": [msgspec.to_builtins(worker) for worker in status.workers],
        "blocking": [
            {"worker": worker.name, **msgspec.to_builtins(run)}
            for worker, run in status.blocking_runs
        ],
    }


@lru_cache(maxsize=4)
def _fingerprints(tasks: tuple[Task[Any, Any], ...]) -> dict[str, str]:
    """Return what names the code of tasks. It reads their sources, so it is not done each time."""
    return {task.name: fingerprint(task) for task in tasks}


DEPLOYMENT_PAGE = Page(
    name="deployments", path="/deployments", title="Deployments", read=read_deployments
)
