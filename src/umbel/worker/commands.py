"""What a worker does when it is told so in its own queue."""

from __future__ import annotations

import os
import resource
import socket
import sys
from typing import Protocol

from umbel.backends import Demand
from umbel.clock import Clock
from umbel.tasks.fingerprints import python
from umbel.tasks.inbox import Health, JobHere, is_command
from umbel.worker.incarnation import Life
from umbel.worker.intake import Intake
from umbel.worker.stops import Stop, Why
from umbel.worker.task_runner import Crew

_MEMORY_UNIT = 1 if sys.platform == "darwin" else 1024


class Commanded(Protocol):
    """What a worker lets its commands see and do."""

    @property
    def beat_age(self) -> float | None:
        """Seconds since the last heartbeat that got through."""

    @property
    def paused(self) -> tuple[str, ...]:
        """What it has been told is paused."""

    def free(self) -> Demand:
        """What could start this very moment."""

    def reload(self) -> None:
        """Stop in phases, to begin again."""

    def stopping(self) -> bool:
        """Whether it has been told to stop."""


class Commands:
    """Carries out what others tell the worker; see ``tasks.inbox``."""

    def __init__(
        self,
        worker: Commanded,
        life: Life,
        crew: Crew,
        intake: Intake,
        clock: Clock,
    ) -> None:
        self._worker = worker
        self._life = life
        self._crew = crew
        self._intake = intake
        self._clock = clock
        self._began = clock.monotonic()

    def health(self) -> Health:
        """How the worker is."""
        worker, life, now = self._worker, self._life, self._clock.now()
        free = worker.free()
        return Health(
            worker=life.name,
            index=life.index,
            incarnation=life.incarnation,
            host=socket.gethostname(),
            pid=os.getpid(),
            python=python(),
            memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MEMORY_UNIT,
            up=self._clock.monotonic() - self._began,
            last_beat=worker.beat_age,
            free_io=free.io,
            free_cpu=free.cpu,
            paused=worker.paused,
            stopping=worker.stopping(),
            jobs=tuple(
                JobHere(one.delivery.id, one.task.name, max(0.0, now - one.delivery.claimed))
                for one in self._crew.activations()
                if not is_command(one.task.name)
            ),
        )

    def cancel_here(self, job: str, reason: str) -> bool:
        """Stop a job that runs here. False: it does not."""
        found = [one for one in self._crew.activations() if one.delivery.id == job]
        for one in found:
            self._crew.stop(one.delivery.lease, Stop(Why.CANCEL, reason))
        return bool(found)

    def reload(self) -> None:
        """Stop in phases and begin again with the code as it is then."""
        self._worker.reload()

    async def pause_itself(self, reason: str) -> None:
        """Start nothing more, until an operator resumes this worker."""
        await self._intake.hold(self._life.incarnation, reason)
