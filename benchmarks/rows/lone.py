"""A worker with nothing to do: how soon it starts a lone job, answers one, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Mapping

from benchmarks import meters
from benchmarks.figures import Measures, known, percentile
from benchmarks.meters import Used
from benchmarks.processes import Crew, Failed
from benchmarks.scales import Scale
from benchmarks.stand import Stand

_GAP = 0.02
_TRIPS = 200
_WAKING = 20.0
_LATE = 5.0
"""Seconds that the last jobs get to start."""


def latency(stand: Stand, scale: Scale) -> Measures | None:
    """Milliseconds from before the sending call to the first line of the task."""
    stand.fresh()
    with stand.workers() as crew:
        _wake(stand, crew)
        with stand.caller("every", jobs=scale.lone, gap=_GAP) as caller:
            result = caller.go()
            stand.await_starts(crew, 2 + scale.lone, _LATE)
        waits = [(at - sent) / 1e6 for sent, at in stand.starts() if sent >= result["first"]]
    return {"p50": percentile(waits, 50), "p99": percentile(waits, 99), "jobs": float(len(waits))}


def round_trip(stand: Stand, scale: Scale) -> Measures | None:
    """Milliseconds until the result is with the caller, one job after another."""
    return _round_trip(stand, scale, {})


def confirmed(stand: Stand, scale: Scale) -> Measures | None:
    """The same where all wait until RabbitMQ has the message, as Umbel always does."""
    if stand.system.database != "rabbitmq":
        return None
    return _round_trip(stand, scale, {"BENCH_CONFIRM": "1"})


def _round_trip(stand: Stand, scale: Scale, settings: Mapping[str, str]) -> Measures | None:
    stand.fresh()
    stand.settings.update(settings, BENCH_RESULTS="1")
    with stand.workers() as crew:
        _wake(stand, crew)
        with stand.caller("there_and_back", jobs=_TRIPS, seconds=scale.trip_seconds) as caller:
            if not caller.offered:
                return None
            took = [seconds * 1e3 for seconds in caller.go()["took"]]
    return {"p50": percentile(took, 50), "p99": percentile(took, 99), "jobs": float(len(took))}


def idle(stand: Stand, scale: Scale) -> Measures | None:
    """Percent of a core, and memory, of a worker that waits."""
    stand.fresh()
    with stand.workers() as crew:
        _wake(stand, crew)
        before, began = _used(stand, crew), time.monotonic()
        time.sleep(scale.idle_seconds)
        after, took = _used(stand, crew), time.monotonic() - began
        memory = stand.memory(crew)
    used = (meters.spent(*pair) for pair in zip(before, after, strict=True))
    worker, server = (None if seconds is None else 100 * seconds / took for seconds in used)
    return known({"worker": worker, "server": server, "memory": memory})


def _used(stand: Stand, crew: Crew) -> tuple[Used | None, Used | None]:
    return meters.of_threads(crew.processes()), stand.place.server_time()


def _wake(stand: Stand, crew: Crew) -> None:
    """Have the worker up: it has run a job. Raises Failed if it does not."""
    with stand.caller("every", jobs=0, gap=0):
        if not stand.await_starts(crew, 1, _WAKING):
            raise Failed(f"the worker has started nothing in {_WAKING:g} s")
