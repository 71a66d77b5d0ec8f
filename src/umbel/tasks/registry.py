"""The tasks of an application, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from umbel.errors import ConfigurationError, UnknownTask
from umbel.messages import Rule
from umbel.tasks.gates import GateSet, Pool
from umbel.tasks.task import Task


class Registry:
    """Maps names to tasks. Each name belongs to one task."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}
        self.queue_gates: dict[str, GateSet] = {}
        """Gates of whole queues, in addition to those of the tasks."""
        self._pools: dict[str, Pool] = {}

    def add(self, task: Task[..., Any]) -> None:
        """Register a task. Declaring the same function again (a reload) replaces it.

        Raises:
            ConfigurationError: another function already has the name.
        """
        known = self._tasks.get(task.name)
        if known is not None and _location(known) != _location(task):
            raise ConfigurationError(
                f"two tasks are named {task.name!r} ({_location(known)} and {_location(task)});"
                " give one of them name=..."
            )
        self._tasks[task.name] = task

    def find(self, name: str) -> Task[..., Any]:
        """Return the task of that name. Raise UnknownTask, with similar names."""
        try:
            return self._tasks[name]
        except KeyError:
            import difflib

            near = difflib.get_close_matches(name, self._tasks, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else "import the module declaring it"
            raise UnknownTask(f"no task {name!r} is registered here; {hint}") from None

    def get(self, name: str) -> Task[..., Any] | None:
        """Return the task of that name, or None."""
        return self._tasks.get(name)

    def __iter__(self) -> Iterator[Task[..., Any]]:
        return iter(self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)

    def queues(self) -> list[str]:
        """Return the queues of all tasks, and ``default``."""
        return sorted({"default", *self.queue_gates, *(task.declared.queue for task in self)})

    def add_pool(self, pool: Pool) -> None:
        """Add a pool of the application. Raise ConfigurationError if the name is taken."""
        if pool.name in self._pools:
            raise ConfigurationError(f"pool={pool.name!r}: a pool of that name exists already")
        self._pools[pool.name] = pool

    def pools(self) -> dict[str, Pool]:
        """Return all pools: those of the application, and those that only tasks declare."""
        declared = {pool.name: pool for task in self for pool in task.declared.pool}
        return declared | self._pools

    def has_computed_limits(self) -> bool:
        """Whether the capacity of some limit is computed by a function."""
        every = [*(task.gate_set for task in self), *self.queue_gates.values()]
        return any(callable(one.capacity) for gate_set in every for one in gate_set.limits.values())

    def ignored_limits(self) -> list[str]:
        """Return the tasks, and ``@`` and the queues, whose limits have no effect."""
        every = [*(task.gate_set for task in self), *self.queue_gates.values()]
        return [one.owner for one in every if one.ignores_limits]

    def rules(self) -> list[Rule]:
        """Return the rules of all gates now."""
        every = [*(task.gate_set for task in self), *self.queue_gates.values()]
        found = [rule for gate_set in every for rule in gate_set.rules()]
        found += [pool.rule for pool in self.pools().values()]
        return list({rule.name: rule for rule in found}.values())


def _location(task: Task[..., Any]) -> str:
    code = getattr(task.function, "__code__", None)
    return f"{code.co_filename}:{task.function.__qualname__}" if code else repr(task.function)
