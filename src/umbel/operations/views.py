"""What operators see, as plain values."""

from __future__ import annotations

from typing import Literal

import msgspec

from umbel.backends import PoolMember

WorkerState = Literal["working", "paused", "stopping", "silent"]


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at a glance."""

    name: str
    queued: int = 0
    waiting: int = 0
    """Jobs of the queue that wait at a gate."""
    scheduled: int = 0
    running: int = 0
    oldest: float | None = None
    """Seconds the oldest queued job has been there."""
    paused: bool = False
    workers: int = 0


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at a glance."""

    name: str
    index: int | None
    """Its place among the workers."""
    incarnation: str
    host: str
    pid: int
    queues: tuple[str, ...]
    running: int
    io: int
    cpu: int
    uptime: float
    silent: float
    """Seconds since its last heartbeat."""
    state: WorkerState
    epoch: int


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at a glance."""

    name: str
    waiting: int = 0
    paused: bool = False
    members: tuple[PoolMember, ...] = ()


class MissingTask(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A task with jobs that wait although no worker that serves their queue has it."""

    queue: str
    task: str
    jobs: int

    def __str__(self) -> str:
        wait = "job waits" if self.jobs == 1 else "jobs wait"
        return (
            f"no running worker of the queue {self.queue} has the task {self.task}:"
            f" {self.jobs:,} {wait}"
        )


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether work can flow."""

    ok: bool
    checks: dict[str, str]
