"""Owns numbers over time: how many jobs ended and how long they ran, counted, folded and read.

Called by: workers, which run a ``Recorder``, and operations, which reads ``Charts``.
Never: knows a server; everything here is entries in ``backends.Coordination``.
"""

from umbel.charts.counters import OTHER_TASKS, Counters, DepthSums, TaskCounts, merge, percentile
from umbel.charts.reader import (
    ChartData,
    ChartPoint,
    ChartRange,
    Charts,
    MeanDepths,
    TaskTotals,
)
from umbel.charts.recorder import Recorder
from umbel.charts.tally import Tally

__all__ = [
    "OTHER_TASKS",
    "ChartData",
    "ChartPoint",
    "ChartRange",
    "Charts",
    "Counters",
    "DepthSums",
    "MeanDepths",
    "Recorder",
    "Tally",
    "TaskCounts",
    "TaskTotals",
    "merge",
    "percentile",
]
