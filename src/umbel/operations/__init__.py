"""Owns everything operators read or change: jobs, queues, workers, pauses, health.

Called by: the command line, and any other skin.
Never: publishes or runs tasks; never asks a worker, only the store, so it answers at once.
"""

from umbel.operations.operations import Health, Operations, QueueView, WorkerView

__all__ = ["Health", "Operations", "QueueView", "WorkerView"]
