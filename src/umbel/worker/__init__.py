"""Owns running tasks: fetch deliveries, run them as coroutines or in threads, settle the outcomes.

Called by: the command line and the test harness. It reaches the outside through one port, Intake,
and through transactions of the store's database, if it has that database's URL.
Never: uses a broker or a store otherwise, or holds a job that it cannot start now.
"""

from umbel.worker.intake import Intake
from umbel.worker.options import WorkerOptions
from umbel.worker.worker import Worker

__all__ = ["Intake", "Worker", "WorkerOptions"]
