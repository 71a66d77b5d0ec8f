"""What Umbel wants to be beside its peers, and whether it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import Measures, best, ratio
from benchmarks.plan import drain_row
from benchmarks.systems import carrier_of

Middle = Callable[[str], Mapping[str, Measures]]
"""The medians of a row, by system."""

OURS = "umbel"
_ASYNC = (drain_row("async", 1), drain_row("async", 2))
_SYNC = (drain_row("sync", 1), drain_row("sync", 2))


@dataclass(frozen=True, kw_only=True)
class Target:
    """One comparison. Of several rows the better counts, for each system."""

    label: str
    database: str
    """Umbel's place. Its peers are those whose jobs the same server carries."""
    rows: tuple[str, ...]
    figure: str
    bound: float
    high: bool = True
    """Whether more is better."""
    theirs: tuple[str, ...] = ()
    """The peers' rows, where they are others."""
    peer: str = ""
    """The one peer to compare with; all if not given."""
    absolute: bool = False
    """Whether the bound is for our figure itself."""


@dataclass(frozen=True)
class Verdict:
    """What came of a target."""

    target: Target
    ours: float
    peer: str
    theirs: float

    @property
    def ratio(self) -> float:
        return ratio(self.ours, self.theirs)

    @property
    def met(self) -> bool:
        value = self.ours if self.target.absolute else self.ratio
        return value >= self.target.bound if self.target.high else value <= self.target.bound


def _both(label: str, rows: tuple[str, ...], figure: str, bound: float, high: bool) -> list[Target]:
    return [
        Target(label=label, database=name, rows=rows, figure=figure, bound=bound, high=high)
        for name in ("PostgreSQL", "SQLite")
    ]


def _drains() -> list[Target]:
    pg, lite = "PostgreSQL", "SQLite"
    coroutines, cost = "drain, async def", "drain, async def: CPU a job"
    # Huey has no coroutines: its functions in threads are what there is to compare with.
    return [
        Target(label=coroutines, database=pg, rows=_ASYNC, figure="rate", bound=1.5),
        Target(label=coroutines, database=lite, rows=_ASYNC, figure="rate", bound=4, theirs=_SYNC),
        Target(label=cost, database=pg, rows=_ASYNC, figure="cpu", bound=0.7, high=False),
        Target(
            label=cost,
            database=lite,
            rows=_ASYNC,
            figure="cpu",
            bound=0.7,
            high=False,
            theirs=_SYNC,
        ),
        Target(
            label="drain, def, beside PgQueuer's async def",
            database=pg,
            rows=_SYNC,
            figure="rate",
            bound=1.0,
            theirs=_ASYNC,
            peer="pgqueuer",
        ),
    ]


def _on_broker(place: str, times: float, publish: str) -> list[Target]:
    """What Umbel wants to be where it has a broker: ``times`` as fast as the best peer."""

    def target(label: str, rows: tuple[str, ...], figure: str, bound: float, **more: Any) -> Target:
        return Target(label=label, database=place, rows=rows, figure=figure, bound=bound, **more)

    # Most peers have no coroutines: the best they have is what there is to compare with.
    either = _ASYNC + _SYNC
    found = [
        target("drain, async def", _ASYNC, "rate", times, theirs=either),
        target("drain, def", _SYNC, "rate", 1.2),
        target("drain, async def: CPU a job", _ASYNC, "cpu", 0.7, theirs=either, high=False),
        target(publish, (_ONE_BY_ONE[publish],), "rate", 1.0),
        target("start of a lone job, p50", ("start of a lone job",), "p50", 1.0, high=False),
    ]
    if place.startswith("RabbitMQ"):
        for row in ("round trip", "round trip, confirmed"):
            found.append(target(f"{row}, p50", (row,), "p50", 1.0, high=False))
    return found


def _canvases() -> list[Target]:
    """What canvases should cost beside Celery's: time, bytes of all messages, and peak memory."""
    rows = ("chord of 10,000", "chain of 1,000", "chords nested 5 deep")
    figures = {"seconds": "seconds", "bytes": "messages, MiB", "memory": "peak memory, MiB"}
    return [
        Target(
            label=f"{row}: {label}",
            database="Redis",
            rows=(row,),
            figure=figure,
            bound=1.0,
            high=False,
        )
        for row in rows
        for figure, label in figures.items()
    ]


_ANSWERED, _CONFIRMED = "publish, one by one, answered", "publish, one by one, confirmed"
_STREAMED = "publish, one by one, confirmed by the stream"
_ONE_BY_ONE = {
    _ANSWERED: "publish, one by one",
    _CONFIRMED: "publish, one by one, confirmed",
    _STREAMED: "publish, one by one",
}
"""What publishing has when it returns, and the row in which all who are compared have the same."""

TARGETS = (
    *_drains(),
    *_both("publish, one by one", ("publish, one by one",), "rate", 1.2, True),
    *_both("publish, 16 threads", ("publish, 16 threads",), "rate", 4, True),
    *_both("publish, in bulk", ("publish, in bulk",), "rate", 1.2, True),
    *_both("start of a lone job, p50", ("start of a lone job",), "p50", 0.6, False),
    *(
        Target(
            label="round trip, p50, ms",
            database=name,
            rows=("round trip",),
            figure="p50",
            bound=5.0,
            high=False,
            absolute=True,
        )
        for name in ("PostgreSQL", "SQLite")
    ),
    *_both("idle: CPU", ("idle",), "cpu", 1.0, False),
    *_both("idle: memory", ("idle",), "memory", 1.0, False),
    *_on_broker("Redis", 2, _ANSWERED),
    *_on_broker("RabbitMQ + Redis", 1.5, _CONFIRMED),
    *_on_broker("RabbitMQ + PostgreSQL", 1.5, _CONFIRMED),
    *_on_broker("NATS + Redis", 2, _STREAMED),
    *_on_broker("NATS + PostgreSQL", 2, _STREAMED),
    *_canvases(),
)


def judge(middle: Middle) -> list[Verdict]:
    """The verdict on every target that was measured; without a peer only absolute ones."""
    found = []
    for target in TARGETS:
        figures = _figures(target, middle, target.rows)
        ours = figures.get(f"{OURS} · {target.database}")
        if ours is None:
            continue
        against = _peers(target, _figures(target, middle, target.theirs or target.rows))
        leader = best(against, high=target.high)
        if leader is not None:
            found.append(Verdict(target, ours, *leader))
        elif target.absolute:
            found.append(Verdict(target, ours, "", math.nan))
    return found


def _figures(target: Target, middle: Middle, rows: tuple[str, ...]) -> dict[str, float]:
    """The better figure of these rows, by system."""
    found: dict[str, float] = {}
    for row in rows:
        for system, measures in middle(row).items():
            value = cpu(measures) if target.figure == "cpu" else measures.get(target.figure)
            if value is not None and carrier_of(system) == carrier_of(target.database):
                better = max if target.high else min
                found[system] = better(found.get(system, value), value)
    return found


def _peers(target: Target, figures: dict[str, float]) -> dict[str, float]:
    return {
        name: value
        for name, value in figures.items()
        if not name.startswith(OURS) and name.startswith(target.peer)
    }


def cpu(measures: Measures) -> float | None:
    """Processor time of worker and server together; None if either is not known."""
    if "worker" not in measures or "server" not in measures:
        return None
    return measures["worker"] + measures["server"]
