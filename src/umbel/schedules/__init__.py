"""Owns schedules: when they fire, how they are declared and changed, and who publishes their ticks.

Called by: workers and routers, which run the scheduler, and operations.
Never: knows a server or a task; everything here is entries in ``backends.Coordination``.
"""

from umbel.schedules.catalog import Catalog, Schedule, read_catalog, read_states
from umbel.schedules.declarations import Declared
from umbel.schedules.definitions import CatchUp, Definition, Overlap, Override, Plan, check_name
from umbel.schedules.scheduler import LEASE_SECONDS, Scheduler
from umbel.schedules.timing import Calendar, Timing, make_timing

__all__ = [
    "LEASE_SECONDS",
    "Calendar",
    "Catalog",
    "CatchUp",
    "Declared",
    "Definition",
    "Overlap",
    "Override",
    "Plan",
    "Schedule",
    "Scheduler",
    "Timing",
    "check_name",
    "make_timing",
    "read_catalog",
    "read_states",
]
