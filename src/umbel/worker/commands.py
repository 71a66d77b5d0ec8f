"""Handles the commands that others send to this worker's own queue."""

from __future__ import annotations

import os
import resource
import socket
import sys
from typing import Protocol

from umbel.backends import Demand
from umbel.clock import Clock
from umbel.tasks.fingerprints import python_version
from umbel.tasks.inbox import Health, RunningJob, is_command
from umbel.worker.executors import Executors
from umbel.worker.incarnation import Incarnation
from umbel.worker.intake import Intake
from umbel.worker.stops import Stop, StopCause

_MEMORY_UNIT = 1 if sys.platform == "darwin" else 1024


class CommandedWorker(Protocol):
    """The worker, as its commands see it."""

    @property
    def heartbeat_age(self) -> float | None:
        """Seconds since the last heartbeat that reached the store."""

    @property
    def paused(self) -> tuple[str, ...]:
        """Names of everything that is paused, as far as this worker knows."""

    def free(self) -> Demand:
        """Return what could start now."""

    def reload(self) -> None:
        """Stop in phases, to be started again."""

    def stopping(self) -> bool:
        """Whether it is stopping."""


class Commands:
    """Implements ``tasks.inbox.CommandHandler``."""

    def __init__(
        self,
        worker: CommandedWorker,
        incarnation: Incarnation,
        executors: Executors,
        intake: Intake,
        clock: Clock,
    ) -> None:
        self._worker = worker
        self._incarnation = incarnation
        self._executors = executors
        self._intake = intake
        self._clock = clock
        self._started = clock.monotonic()

    def health(self) -> Health:
        """Return the state of this worker."""
        worker, own, now = self._worker, self._incarnation, self._clock.now()
        free = worker.free()
        return Health(
            worker=own.name,
            index=own.index,
            incarnation=own.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            python=python_version(),
            memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MEMORY_UNIT,
            up=self._clock.monotonic() - self._started,
            last_beat=worker.heartbeat_age,
            free_io=free.capacity("io"),
            free_cpu=free.capacity("cpu"),
            paused=worker.paused,
            stopping=worker.stopping(),
            jobs=tuple(
                RunningJob(one.delivery.id, one.task.name, max(0.0, now - one.delivery.claimed))
                for one in self._executors.activations()
                if not is_command(one.task.name)
            ),
        )

    def cancel_job(self, job: str, reason: str) -> bool:
        """Stop a job that runs here. Return False if it does not run here."""
        found = [one for one in self._executors.activations() if one.delivery.id == job]
        for one in found:
            self._executors.stop(one.delivery.lease, Stop(StopCause.CANCEL, reason))
        return bool(found)

    def reload(self) -> None:
        """Stop in phases and start again, with the code as it is then."""
        self._worker.reload()

    async def pause_worker(self, reason: str) -> None:
        """Start no more jobs until an operator resumes this worker."""
        await self._intake.pause_worker(self._incarnation.id, reason)
