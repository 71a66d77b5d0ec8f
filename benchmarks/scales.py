"""How much is done: enough to tell, bounded in count and in time."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Bounds of the measurements."""

    rounds: int
    drain: float
    """The share of a system's own number of jobs."""
    drain_seconds: float
    publish: int
    publish_seconds: float
    bulk: int
    lone: int
    """How many jobs are sent to an idle worker."""
    trip_seconds: float
    idle_rounds: int
    idle_seconds: float
    processes: tuple[int, ...]
    limits: int
    growth: int
    """How many jobs are drained to see whether growth slows it down."""
    history: tuple[int, ...]
    waiting: tuple[int, ...]
    linear: tuple[int, ...]
    canvases: tuple[tuple[str, int, bool], ...]
    """Forms, how many calls (of nested chords: how deep), and whether Umbel alone runs it."""
    canvas_seconds: float
    canvas_alone_seconds: float


NORMAL = Scale(
    rounds=3,
    drain=1.0,
    drain_seconds=6.0,
    publish=4_000,
    publish_seconds=1.0,
    bulk=20_000,
    lone=75,
    trip_seconds=1.5,
    idle_rounds=1,
    idle_seconds=10.0,
    processes=(1, 2),
    limits=20_000,
    growth=10_000,
    history=(0, 100_000, 1_000_000),
    waiting=(1_000, 10_000, 100_000, 1_000_000),
    linear=(1_000, 10_000, 100_000),
    canvases=(
        ("chord", 10_000, False),
        ("chain", 1_000, False),
        ("nested", 5, False),
        ("chord", 100_000, True),
        ("chain", 10_000, True),
    ),
    canvas_seconds=60.0,
    canvas_alone_seconds=150.0,
)
QUICK = replace(
    NORMAL,
    rounds=1,
    drain=0.3,
    drain_seconds=4.0,
    publish=1_000,
    publish_seconds=0.7,
    bulk=5_000,
    lone=60,
    trip_seconds=1.0,
    idle_seconds=4.0,
    processes=(2,),
    limits=10_000,
    growth=5_000,
    history=(0, 100_000),
    waiting=(10_000, 100_000),
    linear=(10_000,),
    canvases=(("chord", 1_000, False), ("chain", 100, False), ("nested", 3, False)),
    canvas_seconds=20.0,
)
FULL = replace(
    NORMAL,
    rounds=5,
    idle_rounds=3,
    history=(*NORMAL.history, 10_000_000),
    linear=(*NORMAL.linear, 1_000_000),
)
