"""Owns numbers over time: how many jobs ended and how long they ran, counted, folded and read.

Called by: workers, which run a ``Recorder``, and operations, which reads ``Charts``.
Never: knows a server; everything here is entries in ``backends.Coordination``.
"""

from umbel.charts.counters import (
    OTHER_QUEUES,
    OTHER_TASKS,
    Counters,
    DepthSums,
    QueueCounts,
    TaskCounts,
    merge,
    percentile,
)
from umbel.charts.reader import (
    RATE_POINTS,
    ChartData,
    ChartPoint,
    ChartRange,
    Charts,
    MeanDepths,
    QueueRates,
    TaskTotals,
)
from umbel.charts.recorder import Recorder
from umbel.charts.tally import Tally

__all__ = [
    "OTHER_QUEUES",
    "OTHER_TASKS",
    "RATE_POINTS",
    "ChartData",
    "ChartPoint",
    "ChartRange",
    "Charts",
    "Counters",
    "DepthSums",
    "MeanDepths",
    "QueueCounts",
    "QueueRates",
    "Recorder",
    "Tally",
    "TaskCounts",
    "TaskTotals",
    "merge",
    "percentile",
]
