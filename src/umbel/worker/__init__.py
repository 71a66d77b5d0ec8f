"""Owns running tasks: take deliveries, run them as coroutines or in threads, decide how they ended.

Called by: the command line and the test harness. It knows one port to the outside, Intake; and,
where it has a database's address, transactions there that steps are part of.
Never: touches a broker or a store otherwise; never holds what it cannot start now.
"""

from umbel.worker.intake import Intake
from umbel.worker.options import WorkerOptions
from umbel.worker.worker import Worker

__all__ = ["Intake", "Worker", "WorkerOptions"]
