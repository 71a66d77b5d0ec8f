"""The tasks an application knows, by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from umbel.errors import ConfigurationError, UnknownTask
from umbel.tasks.task import Task


class Registry:
    """Names to tasks. One name, one task."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}

    def add(self, task: Task[..., Any]) -> None:
        """Register a task. Declaring the same function again (a reload) replaces it.

        Raises:
            ConfigurationError: another function already has the name.
        """
        known = self._tasks.get(task.name)
        if known is not None and _place(known) != _place(task):
            raise ConfigurationError(
                f"two tasks are named {task.name!r} ({_place(known)} and {_place(task)});"
                " give one of them name=..."
            )
        self._tasks[task.name] = task

    def find(self, name: str) -> Task[..., Any]:
        """The task of that name. Raises UnknownTask, with the nearest names."""
        try:
            return self._tasks[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._tasks, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else "import the module declaring it"
            raise UnknownTask(f"no task {name!r} is registered here; {hint}") from None

    def get(self, name: str) -> Task[..., Any] | None:
        """The task of that name, or None."""
        return self._tasks.get(name)

    def __iter__(self) -> Iterator[Task[..., Any]]:
        return iter(self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)

    def queues(self) -> list[str]:
        """Every queue some task uses, ``default`` always among them."""
        return sorted({"default", *(task.declared.queue for task in self)})


def _place(task: Task[..., Any]) -> str:
    code = getattr(task.function, "__code__", None)
    return f"{code.co_filename}:{task.function.__qualname__}" if code else repr(task.function)
