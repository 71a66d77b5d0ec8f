"""Which job killed the worker? A death points at one job only when it can have been no other."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

SUSPECT = 2
"""So many deaths make a job a suspect. One is an accident."""
MAX_LAPSES = 10
"""How often the lease of a job may lapse while its worker is alive, before it is buried."""
LAPSED_TOO_OFTEN = (
    "lapses: its lease lapsed %s times while it ran, although its worker was alive; a task that"
    " holds the GIL needs a longer lease or a process of its own"
)
"""The reason in the record of such a job."""
_STEP = 0.25
_LONGEST = 3600.0


class Verdict(msgspec.Struct, frozen=True):
    """What the death of a worker means for one job that it ran."""

    blamed: bool
    """It was the only job, or the only suspect, in that worker."""
    within: float
    """Seconds over which this worker's suspects are to come back, each at another moment."""


def judge(deaths: Sequence[int]) -> list[Verdict]:
    """The verdicts on all jobs of one dead worker, from how many deaths each had seen before.

    A lapse counts here like a death: something in that worker kept it from beating.

    Suspects that died together come back apart, twice as far apart each time. So sooner or later
    the guilty one dies alone, and the others finish.
    """
    suspects = sum(seen >= SUSPECT for seen in deaths)
    spread_out = sum(seen + 1 >= SUSPECT for seen in deaths)
    return [
        Verdict(
            blamed=len(deaths) == 1 or (suspects == 1 and seen >= SUSPECT),
            within=_window(spread_out, seen + 1) if seen + 1 >= SUSPECT else 0.0,
        )
        for seen in deaths
    ]


def _window(suspects: int, deaths: int) -> float:
    doublings = min(deaths - SUSPECT, 20)
    return min((suspects - 1) * _STEP * 2.0**doublings, _LONGEST)
