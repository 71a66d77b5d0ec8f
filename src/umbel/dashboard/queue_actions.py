"""What users can do with queues, and what they can pause."""

from __future__ import annotations

from typing import cast

from umbel.control import Scope
from umbel.dashboard.action_requests import Action, ActionRequest, changed, check_typed
from umbel.errors import ConfigurationError, NotAllowed

_SCOPES = ("all", "queue", "task", "gate", "worker")


async def _pause(request: ActionRequest) -> str:
    scope, name = _target(request)
    await request.operations.pause(scope, name, request.reason)
    return f"Paused {_named(scope, name)}."


async def _resume(request: ActionRequest) -> str:
    scope, name = _target(request)
    resumed = await request.operations.resume(scope, name)
    if not resumed.existed:
        raise NotAllowed(f"No operator has paused {_named(scope, name)}.")
    return f"Resumed {_named(scope, name)}."


def _target(request: ActionRequest) -> tuple[Scope, str]:
    scope = request.get("scope")
    if scope not in _SCOPES:
        raise ConfigurationError(f"scope={scope!r:.40}: give one of {', '.join(_SCOPES)}")
    return cast(Scope, scope), "" if scope == "all" else request.get("name")


def _named(scope: str, name: str) -> str:
    return "all jobs" if scope == "all" else f"the {scope} {name}"


async def _purge(request: ActionRequest) -> str:
    name = request.get("name")
    check_typed(request, name)
    cancelled = await request.operations.purge(name)
    return f"{changed(cancelled, 'job is', 'jobs are')} cancelled."


async def _move(request: ActionRequest) -> str:
    moved = await request.operations.move(request.get("name"), request.get("target"))
    return f"{changed(moved, 'job was', 'jobs were')} moved."


QUEUE_ACTIONS = (
    Action(
        name="pause",
        summary="Start no more jobs of a queue, task, gate or worker, or no jobs at all.",
        act=_pause,
        fields=("scope",),
        optional=("name", "reason"),
        subject=("scope", "name"),
    ),
    Action(
        name="resume",
        summary="End an operator's pause.",
        act=_resume,
        fields=("scope",),
        optional=("name",),
        subject=("scope", "name"),
    ),
    Action(
        name="purge",
        summary="Cancel all jobs of a queue that do not run.",
        act=_purge,
        role="admin",
        fields=("name", "confirm"),
        subject=("name",),
    ),
    Action(
        name="move",
        summary="Move the waiting jobs of a queue to another queue.",
        act=_move,
        fields=("name", "target"),
        subject=("name", "target"),
    ),
)
"""The actions on queues, and pauses."""
