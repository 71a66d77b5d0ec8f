"""Umbel: a distributed task platform for Python.

from umbel import Umbel

app = Umbel("sqlite:///umbel.db")

@app.task
def add(a: int, b: int) -> int:
    return a + b

add.delay(1, 2).get()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.errors import NodeFailed
    from umbel.messages import State
    from umbel.tasks import (
        Handle,
        Hook,
        Limit,
        Pool,
        Rate,
        Retry,
        RetryAfter,
        Signature,
        Snooze,
        Task,
        Unique,
        chain,
        chord,
        chunks,
        current,
        fork,
        group,
        optional,
        poisonous,
        retry,
        step,
        task,
    )
    from umbel.tasks.waiting_nodes import Signal, Sleep
    from umbel.worker import WorkerOptions

__version__ = "0.1.0"

__all__ = [
    "Handle",
    "Hook",
    "Limit",
    "NodeFailed",
    "Pool",
    "Rate",
    "Retry",
    "RetryAfter",
    "Signal",
    "Signature",
    "Sleep",
    "Snooze",
    "State",
    "Task",
    "Umbel",
    "Unique",
    "WorkerOptions",
    "chain",
    "chord",
    "chunks",
    "current",
    "fork",
    "group",
    "optional",
    "poisonous",
    "retry",
    "step",
    "task",
]

_PACKAGES = {
    "NodeFailed": "umbel.errors",
    "Signal": "umbel.tasks.waiting_nodes",
    "Sleep": "umbel.tasks.waiting_nodes",
    "State": "umbel.messages",
    "Umbel": "umbel.app",
    "WorkerOptions": "umbel.worker",
}
"""The packages of names that are not in ``umbel.tasks``."""


def __getattr__(name: str) -> Any:
    """Import a name on first use.

    A process that supervises workers needs none of them, and one that publishes no worker.
    """
    if name == "errors":
        return import_module("umbel.errors")
    if name not in __all__:
        raise AttributeError(f"module 'umbel' has no attribute {name!r}")
    value = getattr(import_module(_PACKAGES.get(name, "umbel.tasks")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
