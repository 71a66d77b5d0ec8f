"""Owns what tests use: of applications (a fixture), and of adapters (suites, a model, clocks).

Called by: tests, here and in other projects; pytest loads ``plugin``.
Never: imported by code that runs jobs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from umbel.testing.backend import Adapters, OpenAdapters
    from umbel.testing.clock import FakeClock, VirtualClock, WrongClock, wrong_clocks
    from umbel.testing.hooks import RecordedHooks
    from umbel.testing.inline_worker import FinishedJob
    from umbel.testing.memory import InMemoryJobs, eager, in_memory
    from umbel.testing.published import PublishedCall

_MODULES = {
    "Adapters": "backend",
    "FakeClock": "clock",
    "FinishedJob": "inline_worker",
    "InMemoryJobs": "memory",
    "OpenAdapters": "backend",
    "PublishedCall": "published",
    "RecordedHooks": "hooks",
    "VirtualClock": "clock",
    "WrongClock": "clock",
    "eager": "memory",
    "in_memory": "memory",
    "wrong_clocks": "clock",
}

__all__ = [
    "Adapters",
    "FakeClock",
    "FinishedJob",
    "InMemoryJobs",
    "OpenAdapters",
    "PublishedCall",
    "RecordedHooks",
    "VirtualClock",
    "WrongClock",
    "eager",
    "in_memory",
    "wrong_clocks",
]


def __getattr__(name: str) -> Any:
    """Import a name on first use: pytest imports this package in every run, for the plugin."""
    if name not in _MODULES:
        raise AttributeError(f"module 'umbel.testing' has no attribute {name!r}")
    value = getattr(import_module(f"umbel.testing.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
