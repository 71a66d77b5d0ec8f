"""Pauses as pages show them."""

from __future__ import annotations

from typing import Any

from umbel.control import Pause
from umbel.operations import Operations


async def pauses_of(operations: Operations, scope: str, name: str) -> list[dict[str, Any]]:
    """Return the pauses that stop the jobs of a task, a gate or a worker."""
    return [
        pause_document(one)
        for one in await operations.pauses()
        if one.scope == "all" or (one.scope, one.name) == (scope, name)
    ]


def pause_document(pause: Pause) -> dict[str, Any]:
    """Return a pause as plain data."""
    return {
        "scope": pause.scope,
        "name": pause.name,
        "reason": pause.reason,
        "since": pause.since,
        "by_deployment": bool(pause.holder),
    }
