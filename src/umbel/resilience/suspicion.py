"""Which job killed a worker? A job is blamed only if no other job can have caused the death."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

SUSPECT_DEATHS = 2
"""A job with this many deaths is a suspect. One death may be an accident."""
MAX_LAPSES = 10
"""How often the lease of a job may lapse while its worker is alive, before it is buried."""
LAPSED_TOO_OFTEN = (
    "lapses: its lease lapsed %s times while it ran, although its worker was alive; a task that"
    " holds the GIL needs a longer lease or a process of its own"
)
"""The reason in the record of a job that is buried for lapses."""
_STEP_SECONDS = 0.25
_MAX_WINDOW_SECONDS = 3600.0


class Verdict(msgspec.Struct, frozen=True):
    """What the death of a worker means for one job that it ran."""

    blamed: bool
    """Whether it was the only job, or the only suspect, in that worker."""
    within: float
    """Seconds over which the suspects of this worker are spread when they come back."""


def judge(deaths: Sequence[int]) -> list[Verdict]:
    """Return verdicts on all jobs of a dead worker, from the earlier deaths of each.

    A lapse counts like a death here: a job in that worker may have prevented heartbeats.

    Suspects that died together come back at different times, with twice the distance after each
    death. So eventually the job that kills workers dies alone, and the others finish.
    """
    suspects = sum(seen >= SUSPECT_DEATHS for seen in deaths)
    spread_out = sum(seen + 1 >= SUSPECT_DEATHS for seen in deaths)
    return [
        Verdict(
            blamed=len(deaths) == 1 or (suspects == 1 and seen >= SUSPECT_DEATHS),
            within=_window(spread_out, seen + 1) if seen + 1 >= SUSPECT_DEATHS else 0.0,
        )
        for seen in deaths
    ]


def _window(suspects: int, deaths: int) -> float:
    doublings = min(deaths - SUSPECT_DEATHS, 20)
    return min((suspects - 1) * _STEP_SECONDS * 2.0**doublings, _MAX_WINDOW_SECONDS)
