"""The executors of a worker: coroutines for ``async def`` tasks, threads for ``def`` tasks."""

from __future__ import annotations

import asyncio
from typing import Any

from umbel.clock import Clock
from umbel.messages import Lease
from umbel.tasks.hooks import Hooks
from umbel.worker.coroutines import CoroutineExecutor, TrioLoop
from umbel.worker.options import WorkerOptions
from umbel.worker.runs import Activation, Completion
from umbel.worker.stops import Stop
from umbel.worker.threads import ThreadExecutor


class Executors:
    """Executes activations, each by the executor of its task's kind, and stops them."""

    def __init__(self, options: WorkerOptions, clock: Clock, hooks: Hooks) -> None:
        self._coroutines = CoroutineExecutor(options.io, clock, hooks)
        self._threads = ThreadExecutor(options.cpu, clock, hooks)
        self._by_kind: dict[str, CoroutineExecutor | ThreadExecutor] = {
            "io": self._coroutines,
            "cpu": self._threads,
        }

    def start(self, completion: Completion) -> None:
        """Accept activations; pass ended runs to ``completion`` in the running event loop."""
        self._coroutines.start(completion)
        self._threads.start(completion)

    def use_trio(self, trio: TrioLoop) -> None:
        """Run coroutines that are written for Trio in this loop."""
        self._coroutines.trio = trio

    def close(self) -> None:
        """End idle threads now, and busy ones after their task."""
        self._threads.close()

    def submit(self, activation: Activation) -> bool:
        """Start it. Return False if the executor of its kind has no free slot."""
        executor = self._by_kind[activation.task.kind]
        if executor.running >= executor.budget:
            return False
        executor.submit(activation)
        return True

    def stop(self, lease: Lease, stop: Stop) -> None:
        """Stop the run under this lease, if there is one."""
        self._coroutines.stop(lease, stop)
        self._threads.stop(lease, stop)

    def stop_all(self, stop: Stop, *, only_interruptible: bool = False) -> None:
        """Stop all runs, or those of interruptible tasks."""
        for activation in self.activations():
            if activation.task.declared.interruptible or not only_interruptible:
                self.stop(activation.delivery.lease, stop)

    def abandon(self, lease: Lease) -> None:
        """Ignore a run from now on: it did not stop when asked to."""
        self._coroutines.abandon(lease)
        self._threads.abandon(lease)

    @property
    def running(self) -> int:
        """How many tasks run."""
        return self._coroutines.running + self._threads.running

    def activations(self) -> list[Activation]:
        """Return all activations that run."""
        return self._coroutines.activations() + self._threads.activations()

    def coroutines(self, task: asyncio.Task[Any] | None) -> list[Activation]:
        """Return the activation that runs in an asyncio task; if there is none, all coroutines."""
        found = self._coroutines.find(task)
        return self._coroutines.activations() if found is None else [found]

    def free(self) -> dict[str, int]:
        """Return how many more tasks of each kind could start now."""
        return {kind: one.budget - one.running for kind, one in self._by_kind.items()}
