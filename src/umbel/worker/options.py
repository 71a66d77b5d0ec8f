"""Options of a worker."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from umbel.errors import ConfigurationError


def default_name() -> str:
    """Return the host's name; several workers of one host add their index."""
    return socket.gethostname() or "worker"


def replica_ordinal(host: str) -> int | None:
    """Return the number at the end of a StatefulSet replica's name: 3 for ``worker-3``."""
    found = re.fullmatch(r"[a-z][a-z0-9-]*-(\d{1,4})", host)
    return int(found[1]) if found else None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    """The options of one worker process."""

    queues: tuple[str, ...] = ("default",)
    name: str = field(default_factory=default_name)
    index: int | None = None
    """The worker index: 0, 1, 2 … None: the replica's ordinal, else the lowest free index."""
    ordinal: int | None = field(default_factory=lambda: replica_ordinal(socket.gethostname()))
    """The index to take if it is free and ``index`` is None."""
    io: int = 100
    """How many ``async def`` tasks run at once."""
    cpu: int = field(default_factory=lambda: min(10, 2 * (os.cpu_count() or 1)))
    """How many ``def`` tasks run at once, each in a thread."""
    lease: float = 10.0
    """Seconds without a heartbeat after which others take this worker's jobs."""
    grace: float = 30.0
    """Seconds that uninterruptible tasks get to finish when the worker stops."""
    remember: int = 100
    """How many finished message ids the idempotent receiver remembers."""
    stall: float = 60.0
    """Seconds with jobs waiting, free slots and no fetched job, until the fetch is restarted."""
    order: str | Callable[..., Sequence[str]] = "strict"
    """Which queue comes first: as given (``strict``), ``weighted``, ``short-first``,
    ``long-first``, ``rare-first``, ``saturation``, or a function; see ``router.ordering``."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """With ``weighted``: how often each queue is first, in relation to others; default 1."""
    inbox: bool = True
    """Whether it accepts messages to itself: commands, calls with ``worker=``, broadcasts."""
    signing: bool = True
    """Whether these messages must be signed, if there are keys."""
    scheduler: bool = True
    """Whether it may publish the ticks of schedules. It declares its own schedules anyway."""
    charts: bool = True
    """Whether it records how many jobs ended and how long they ran, for charts."""
    uvloop: bool = True
    """Use uvloop's event loop when it is installed."""

    @property
    def capacity(self) -> dict[str, int]:
        """How many tasks of each kind run at once."""
        return {"io": self.io, "cpu": self.cpu}

    def __post_init__(self) -> None:
        if not self.queues or any(not 0 < len(q) <= 255 for q in self.queues):
            raise ConfigurationError(f"queues={self.queues!r}: give queue names, comma separated")
        if not 0 < len(self.name) <= 255:
            raise ConfigurationError(f"name={self.name!r}: give a worker name")
        if self.index is not None and not 0 <= self.index < 1_000_000:
            raise ConfigurationError(f"index={self.index}: give 0 to 999999")
        for name in ("io", "cpu", "remember"):
            if not 0 <= getattr(self, name) <= 100_000:
                raise ConfigurationError(f"{name}={getattr(self, name)}: give 0 to 100000")
        if self.io + self.cpu == 0:
            raise ConfigurationError("io=0 and cpu=0: such a worker cannot run any task")
        if not 0.3 <= self.lease <= 3600:
            raise ConfigurationError(f"lease={self.lease}: give seconds from 0.3 to 3600")
        if not 0 <= self.grace <= 1e6:
            raise ConfigurationError(f"grace={self.grace}: give seconds, 0 or more")
        if not self.stall > 0:
            raise ConfigurationError(f"stall={self.stall}: give seconds above 0")
