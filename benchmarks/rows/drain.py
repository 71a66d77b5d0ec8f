"""Draining: how fast a full queue of jobs that do nothing is worked off."""

from __future__ import annotations

import time

from benchmarks.figures import Measures, known, per_job, rate
from benchmarks.meters import spent
from benchmarks.processes import Crew, Failed
from benchmarks.scales import Scale
from benchmarks.stand import Stand
from benchmarks.systems import Kind, System

_RECORDING = 5.0
_LOOK = 0.02
_REPEATED = 1.01
"""Starts a job: some promise that no job is lost, and run one twice now and then."""


def crews(system: System, scale: Scale) -> tuple[int, ...]:
    """Of how many processes a system's drains are: what the scale leaves of its own choice."""
    left = tuple(number for number in system.processes if number in scale.processes)
    return left or system.processes


def drain(stand: Stand, scale: Scale, kind: Kind, processes: int) -> Measures | None:
    """Rates and costs of one drain; None if the system has no such tasks, or other processes.

    The first fifth is not counted: there the workers come up, one after another.
    """
    if kind not in stand.system.kinds or processes not in crews(stand.system, scale):
        return None
    stand.fresh(kind)
    jobs = stand.fill(int(stand.system.size * scale.drain))
    return work_off(stand, jobs, scale.drain_seconds, processes)


def work_off(
    stand: Stand, jobs: int, seconds: float, processes: int, *, whole: bool = True
) -> Measures:
    """Work off so many of the jobs in the queue; ``whole``: those are all."""
    place, skip = stand.place, jobs // 5
    ended, written = place.transactions(), place.written()
    with stand.workers(processes) as crew:
        stand.await_starts(crew, skip + 1)
        before, counted = stand.read(crew), stand.seen()
        seen = stand.await_starts(crew, jobs, seconds)
        recorded = _recorded(stand, crew) if whole and seen >= jobs else None
        after, seen = stand.read(crew), stand.seen()
        memory = stand.memory(crew)
    moments = [started for _, started in stand.starts()]
    if whole and len(moments) > jobs * _REPEATED:
        raise Failed(f"{jobs} jobs were sent and {len(moments)} started")
    return known(
        {
            "sent": float(jobs),
            "jobs": float(len(moments)),
            "rate": rate(moments, skip),
            "recorded": rate(moments, skip, recorded) if recorded else None,
            "worker": per_job(before.workers, after.workers, seen - counted),
            "server": per_job(0.0, spent(before.server, after.server), seen - counted),
            "transactions": per_job(ended, place.transactions(), len(moments)),
            "log": per_job(written, place.written(), len(moments)),
            "memory": memory,
        }
    )


def _recorded(stand: Stand, crew: Crew) -> int | None:
    """When every job was recorded as finished; None if nobody records it or it takes too long."""
    until = time.monotonic() + _RECORDING
    while time.monotonic() < until and not crew.ended():
        left, now = stand.unfinished(), time.monotonic_ns()
        if left is None:
            return None
        if left == 0:
            return now
        time.sleep(_LOOK)
    return None
