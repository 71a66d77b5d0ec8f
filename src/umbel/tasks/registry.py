"""The tasks an application knows, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from umbel.errors import ConfigurationError, UnknownTask
from umbel.messages import Rule
from umbel.tasks.gates import Gating, Pool
from umbel.tasks.task import Task


class Registry:
    """Names to tasks. One name, one task."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}
        self.queue_gates: dict[str, Gating] = {}
        """What everything in a queue has to pass, beside what its task declares."""
        self._pools: dict[str, Pool] = {}

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
            import difflib

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
        return sorted({"default", *self.queue_gates, *(task.declared.queue for task in self)})

    def add_pool(self, pool: Pool) -> None:
        """A pool that workers keep an eye on. Raises ConfigurationError: the name is taken."""
        if pool.name in self._pools:
            raise ConfigurationError(f"pool={pool.name!r}: there is one of that name already")
        self._pools[pool.name] = pool

    def pools(self) -> dict[str, Pool]:
        """All pools: those of the application, and those that only tasks know."""
        theirs = {pool.name: pool for task in self for pool in task.declared.pool}
        return theirs | self._pools

    def computed(self) -> bool:
        """Whether a limit comes from a function."""
        every = [*(task.gating for task in self), *self.queue_gates.values()]
        return any(callable(one.capacity) for gating in every for one in gating.limits.values())

    def rules(self) -> list[Rule]:
        """What all gates go by now."""
        every = [*(task.gating for task in self), *self.queue_gates.values()]
        found = [rule for gating in every for rule in gating.rules()]
        found += [pool.rule for pool in self.pools().values()]
        return list({rule.name: rule for rule in found}.values())


def _place(task: Task[..., Any]) -> str:
    code = getattr(task.function, "__code__", None)
    return f"{code.co_filename}:{task.function.__qualname__}" if code else repr(task.function)
