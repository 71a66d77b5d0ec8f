"""Canvases: chords, chains and nested chords, from before the publishing call to the result."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import meters, sizes
from benchmarks.figures import Measures, known
from benchmarks.processes import Crew
from benchmarks.scales import Scale
from benchmarks.stand import Stand
from benchmarks.systems import Database

_PEERS = ("umbel", "celery")
_PROCESSES = 2
_MEBI = 2**20
_ROWS: dict[Database, str] = {
    "postgresql": """
        select (select count(*) from umbel.job) + (select count(*) from umbel.record)
          + (select count(*) from umbel.job_join) + (select count(*) from umbel.job_edge)
          + (select count(*) from umbel.job_wait)""",
    "redis": "return redis.call('DBSIZE')",
}


def run(stand: Stand, scale: Scale, form: str, count: int, *, alone: bool) -> Measures | None:
    """Seconds, bytes and memory of one canvas. ``alone``: of Umbel only."""
    system = stand.system
    known_rows = _ROWS.get(system.database) if system.store is None else None
    if known_rows is None or system.peer not in (_PEERS[:1] if alone else _PEERS):
        return None
    stand.fresh()
    seconds = scale.canvas_alone_seconds if alone else scale.canvas_seconds
    with tempfile.TemporaryDirectory() as folder:
        stand.settings |= {"BENCH_RESULTS": "1", "BENCH_SIZES": folder}
        with (
            stand.workers(_PROCESSES) as crew,
            stand.caller("canvas", form=form, count=count, seconds=seconds) as caller,
        ):
            small, before = sizes.read(Path(folder))
            rows = stand.place.ask(known_rows)
            result = caller.go()
            largest, total = sizes.read(Path(folder))
            rows = stand.place.ask(known_rows) - rows
            workers = _peak(crew)
    return known(
        {
            "seconds": result["seconds"],
            "published": result["published"],
            "small": float(small),
            "largest": float(largest),
            "bytes": (total - before) / _MEBI,
            "rows": float(rows),
            "publisher": result["peak"],
            "workers": workers,
            "memory": result["peak"] + workers,
        }
    )


def _peak(crew: Crew) -> float:
    return meters.peak(crew.processes()) / _MEBI
