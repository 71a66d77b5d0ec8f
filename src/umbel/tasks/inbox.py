"""What every worker does when it is told so in its own queue: tasks like any others."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from umbel.tasks.options import TaskOptions
from umbel.tasks.task import IOTask

NAMES = "umbel.inbox."
"""What the names of these tasks begin with."""
_SOON = 60.0
"""Seconds after which nobody waits for a command any more."""
_FIRST = 32_767
"""Before whatever else is in the queue."""


def is_command(task: str) -> bool:
    """Whether a task is one of these."""
    return task.startswith(NAMES)


class JobHere(msgspec.Struct, frozen=True):
    """A job that runs on the worker."""

    id: str
    task: str
    seconds: float
    """For how long."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself at this moment, rather than what the store knows of it."""

    worker: str
    index: int | None
    incarnation: str
    host: str
    pid: int
    python: str
    memory: int
    """Most bytes it has had resident so far."""
    up: float
    """Seconds since it began."""
    last_beat: float | None
    """Seconds since its last heartbeat that got through."""
    free_io: int
    free_cpu: int
    paused: tuple[str, ...]
    stopping: bool
    jobs: tuple[JobHere, ...]


class Addressee(Protocol):
    """The worker that is told."""

    def health(self) -> Health:
        """How it is."""

    def cancel_here(self, job: str, reason: str) -> bool:
        """Stop a job that runs on it. False: it does not."""

    async def pause_itself(self, reason: str) -> None:
        """Start nothing more, until an operator resumes it."""

    def reload(self) -> None:
        """Stop in phases and begin again with the code as it is then."""


class InboxTasks:
    """One of each, for who sends them and, with an addressee, for who carries them out."""

    def __init__(self, worker: Addressee | None = None) -> None:
        def told() -> Addressee:
            assert worker is not None  # who only sends them never runs them
            return worker

        async def health() -> Health:
            return told().health()

        async def cancel(job: str, reason: str = "") -> bool:
            return told().cancel_here(job, reason)

        async def pause(reason: str = "") -> None:
            await told().pause_itself(reason)

        async def reload() -> None:
            told().reload()

        options = TaskOptions(expires=_SOON, priority=_FIRST)
        self.health: IOTask[[], Health] = IOTask(health, f"{NAMES}health", options)
        """How is it? Answered by the worker itself."""
        self.cancel: IOTask[..., bool] = IOTask(cancel, f"{NAMES}cancel", options)
        """Stop a job that runs there, now and not with its next heartbeat. False: none does."""
        self.pause: IOTask[..., None] = IOTask(pause, f"{NAMES}pause", options)
        """Start nothing more. A paused worker reads its queue no more: see ``umbel resume``."""
        self.reload: IOTask[[], None] = IOTask(reload, f"{NAMES}reload", options)
        """Finish what runs, and begin anew with the code as it is then."""

    def all(self) -> dict[str, IOTask[..., Any]]:
        """By name."""
        every = (self.health, self.cancel, self.pause, self.reload)
        return {task.name: task for task in every}
