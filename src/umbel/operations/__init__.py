"""Owns what operators read or change: jobs, queues, gates, workers, pauses, deployments, health.

Called by: the command line, and any other skin.
Never: publishes or runs tasks; never asks a worker, only the store, so it answers at once.
"""

from umbel.operations.deployment_views import (
    Audit,
    AuditedTask,
    CodeChanges,
    DeployView,
    RunView,
    StandingView,
)
from umbel.operations.operations import Operations
from umbel.operations.views import Health, MissingTask, PoolView, QueueView, WorkerView

__all__ = [
    "Audit",
    "AuditedTask",
    "CodeChanges",
    "DeployView",
    "Health",
    "MissingTask",
    "Operations",
    "PoolView",
    "QueueView",
    "RunView",
    "StandingView",
    "WorkerView",
]
