"""The plan of a run: every step in its order, all systems in turn within each round.

What drifts while a row is measured (the machine's clock, other work, the disk) then hits all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from benchmarks.figures import Measures
from benchmarks.places import Place
from benchmarks.rows import canvas, drain, growth, limits, lone, publish
from benchmarks.rows.growth import ROWS
from benchmarks.scales import Scale
from benchmarks.stand import Stand
from benchmarks.systems import Kind

GROUPS = ("publish", "drain", "latency", "idle", "canvas", "limits", "growth")

T = TypeVar("T")

Measure = Callable[[Stand, Scale], Measures | None]


@dataclass(frozen=True)
class Step:
    """One measurement of one system: what it gives, by row."""

    row: str
    system: str
    measure: Callable[[], Mapping[str, Measures | None]]


@dataclass(frozen=True)
class Row:
    """One thing that is measured of every system."""

    name: str
    group: str
    measure: Measure


def drain_row(kind: Kind, processes: int) -> str:
    """The name of a drain's row."""
    return f"drain, {kind}, {processes} process{'es' if processes > 1 else ''}"


def steps(
    stands: Sequence[Stand], raw: Mapping[str, Place], scale: Scale, groups: Sequence[str]
) -> list[Step]:
    """Everything that is to be done, in order."""
    found: list[Step] = []
    for row in _rows():
        if row.group in groups:
            rounds = scale.idle_rounds if row.group == "idle" else scale.rounds
            there = [stand for stand in stands if _is_in(row, stand)]
            found += _in_turn(row, there, scale, rounds)
    if "canvas" in groups:
        for row in _canvases(scale):
            there = [stand for stand in stands if _is_in(row, stand)]
            found += _in_turn(row, there, scale, 1)
    if "limits" in groups:
        found += _limits(raw, scale)
    if "growth" in groups:
        for stand in stands:
            if stand.system.peer == "umbel" and stand.system.database in ROWS:
                found += _growth(stand, scale)
    return found


def _rows() -> list[Row]:
    drains = [
        Row(
            drain_row(kind, processes),
            "drain",
            partial(drain.drain, kind=kind, processes=processes),
        )
        for kind in ("async", "sync")
        for processes in (1, 2)
    ]
    return [
        Row("publish, one by one", "publish", publish.one_by_one),
        Row("publish, one by one, confirmed", "publish", publish.confirmed),
        Row("publish, 16 threads", "publish", publish.threads),
        Row("publish, in bulk", "publish", publish.in_bulk),
        *drains,
        Row("start of a lone job", "latency", lone.latency),
        Row("round trip", "latency", lone.round_trip),
        Row("round trip, confirmed", "latency", lone.confirmed),
        Row("idle", "idle", lone.idle),
    ]


def canvas_row(form: str, count: int) -> str:
    """The name of a canvas's row."""
    return f"chords nested {count} deep" if form == "nested" else f"{form} of {count:,}"


def is_canvas(row: str) -> bool:
    """Whether a row is one of canvases."""
    return row.startswith(("chord", "chain"))


def _canvases(scale: Scale) -> list[Row]:
    return [
        Row(
            canvas_row(form, count),
            "canvas",
            partial(canvas.run, form=form, count=count, alone=alone),
        )
        for form, count, alone in scale.canvases
    ]


def _is_in(row: Row, stand: Stand) -> bool:
    return not stand.system.groups or row.group in stand.system.groups


def _in_turn(row: Row, stands: Sequence[Stand], scale: Scale, rounds: int) -> Iterator[Step]:
    for turn in range(rounds):
        for stand in rotated(stands, turn):
            yield _step(row, stand, scale)


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """Another one begins each round."""
    first = turn % max(len(items), 1)
    return [*items[first:], *items[:first]]


def _step(row: Row, stand: Stand, scale: Scale) -> Step:
    return Step(row.name, stand.system.name, lambda: {row.name: row.measure(stand, scale)})


def _limits(raw: Mapping[str, Place], scale: Scale) -> Iterator[Step]:
    for _ in range(scale.rounds):
        for name, place in raw.items():
            connect = limits.DRIVERS[name]
            measure = partial(limits.limits, place, connect, scale.limits)
            yield Step("raw limit", name, measure)


def _growth(stand: Stand, scale: Scale) -> Iterator[Step]:
    kinds: list[tuple[str, tuple[int, ...], Callable[..., Measures | None]]] = [
        ("history", scale.history, growth.with_history),
        ("waiting", scale.waiting, growth.with_waiting),
        ("published and drained", scale.linear, growth.published_and_drained),
    ]
    for kind, counts, measure in kinds:
        for count in counts:
            row = Row(f"growth: {kind}, {count:,}", "growth", partial(measure, count=count))
            yield _step(row, stand, scale)
