"""Owns running tasks: take deliveries, run them as coroutines or in threads, decide how they ended.

Called by: the command line and the test harness. It knows one port to the outside: Intake.
Never: touches a broker or a store; never holds what it cannot start now.
"""

from umbel.worker.intake import Intake
from umbel.worker.options import WorkerOptions
from umbel.worker.worker import Worker

__all__ = ["Intake", "Worker", "WorkerOptions"]
