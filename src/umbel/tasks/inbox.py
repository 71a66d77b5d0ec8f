"""Commands to one worker: tasks that every worker has, run from its own queue."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from umbel.tasks.options import TaskOptions
from umbel.tasks.task import IOTask

NAME_PREFIX = "umbel.inbox."
"""The prefix of the names of these tasks."""
_EXPIRY_SECONDS = 60.0
"""Seconds after which a command is not run any more: its sender has stopped waiting."""
_MAX_PRIORITY = 32_767
"""Commands run before all other jobs in the queue."""


def is_command(task: str) -> bool:
    """Whether a task is a command."""
    return task.startswith(NAME_PREFIX)


class RunningJob(msgspec.Struct, frozen=True):
    """A job that runs on the worker."""

    id: str
    task: str
    seconds: float
    """How long it has been running."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a worker, as the worker itself reports it."""

    worker: str
    index: int | None
    incarnation: str
    host: str
    pid: int
    python: str
    memory: int
    """Peak resident memory, in bytes."""
    up: float
    """Seconds since it started."""
    last_beat: float | None
    """Seconds since its last heartbeat that reached the store."""
    free_io: int
    free_cpu: int
    paused: tuple[str, ...]
    stopping: bool
    jobs: tuple[RunningJob, ...]


class CommandHandler(Protocol):
    """The worker that runs the commands."""

    def health(self) -> Health:
        """Return its state."""

    def cancel_job(self, job: str, reason: str) -> bool:
        """Stop a job that runs on it. Return False if the job does not run there."""

    async def pause_worker(self, reason: str) -> None:
        """Start no more jobs until an operator resumes the worker."""

    def reload(self) -> None:
        """Stop in phases and start again, with the code as it is then."""


class InboxTasks:
    """One task for each command. A worker gives its handler; a sender needs none."""

    def __init__(self, handler: CommandHandler | None = None) -> None:
        def worker() -> CommandHandler:
            assert handler is not None  # a sender never runs them
            return handler

        async def health() -> Health:
            return worker().health()

        async def cancel(job: str, reason: str = "") -> bool:
            return worker().cancel_job(job, reason)

        async def pause(reason: str = "") -> None:
            await worker().pause_worker(reason)

        async def reload() -> None:
            worker().reload()

        options = TaskOptions(expires=_EXPIRY_SECONDS, priority=_MAX_PRIORITY)
        self.health: IOTask[[], Health] = IOTask(health, f"{NAME_PREFIX}health", options)
        """Return the worker's state."""
        self.cancel: IOTask[..., bool] = IOTask(cancel, f"{NAME_PREFIX}cancel", options)
        """Stop a job at once, not at the next heartbeat. False: it does not run there."""
        self.pause: IOTask[..., None] = IOTask(pause, f"{NAME_PREFIX}pause", options)
        """Start no more jobs. A paused worker does not read its own queue: see ``umbel resume``."""
        self.reload: IOTask[[], None] = IOTask(reload, f"{NAME_PREFIX}reload", options)
        """Stop in phases and start again, with the code as it is then."""

    def all(self) -> dict[str, IOTask[..., Any]]:
        """Return the tasks by name."""
        every = (self.health, self.cancel, self.pause, self.reload)
        return {task.name: task for task in every}
