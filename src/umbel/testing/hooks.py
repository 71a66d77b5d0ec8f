"""Records the calls of hooks, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from umbel.tasks import Hook, Job
from umbel.tasks.hooks import OutgoingJob, PublishedTick, SettledJob


class RecordedHooks(Hook):
    """Keeps each call as a name and its argument, in ``calls``: ``app.use(RecordedHooks())``.

    ``around_run`` is recorded twice: as ``before_run`` and as ``after_run``.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def names(self, *of: str) -> list[str]:
        """Return the names of all calls, or of those with one of these names."""
        return [name for name, _ in self.calls if not of or name in of]

    def on_publish(self, job: OutgoingJob) -> None:
        """Record it."""
        self.calls.append(("on_publish", job))

    def on_fetch(self, jobs: Sequence[Job]) -> None:
        """Record it."""
        self.calls.append(("on_fetch", list(jobs)))

    def around_run(self, job: Job) -> Iterator[None]:
        """Record both halves."""
        self.calls.append(("before_run", job))
        try:
            yield
        finally:
            self.calls.append(("after_run", job))

    def on_settle(self, settled: SettledJob) -> None:
        """Record it."""
        self.calls.append(("on_settle", settled))

    def on_worker_start(self, worker: str) -> None:
        """Record it."""
        self.calls.append(("on_worker_start", worker))

    def on_worker_stop(self, worker: str) -> None:
        """Record it."""
        self.calls.append(("on_worker_stop", worker))

    def on_tick(self, tick: PublishedTick) -> None:
        """Record it."""
        self.calls.append(("on_tick", tick))
