"""Umbel: a distributed task platform for Python.

from umbel import Umbel

app = Umbel("sqlite:///umbel.db")

@app.task
def add(a: int, b: int) -> int:
    return a + b

add.delay(1, 2).get()
"""

from typing import TYPE_CHECKING, Any

from umbel.app import Umbel
from umbel.messages import State
from umbel.tasks import (
    Handle,
    Limit,
    Pool,
    Rate,
    Retry,
    Signature,
    Snooze,
    Task,
    Unique,
    current,
    optional,
    poisonous,
    retry,
    step,
    task,
)

if TYPE_CHECKING:
    from umbel.worker import WorkerOptions

__version__ = "0.1.0"

__all__ = [
    "Handle",
    "Limit",
    "Pool",
    "Rate",
    "Retry",
    "Signature",
    "Snooze",
    "State",
    "Task",
    "Umbel",
    "Unique",
    "WorkerOptions",
    "current",
    "optional",
    "poisonous",
    "retry",
    "step",
    "task",
]


def __getattr__(name: str) -> Any:
    """Loads the worker's room on first use: a process that only publishes does without."""
    if name == "WorkerOptions":
        from umbel.worker import WorkerOptions

        return WorkerOptions
    raise AttributeError(f"module 'umbel' has no attribute {name!r}")
