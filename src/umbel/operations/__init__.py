"""Owns what operators read and change: jobs, queues, gates, workers, pauses, deployments, health.

Called by: the command line and other user interfaces.
Never: publishes or runs tasks. It asks only the store, never a worker, so it answers at once.
"""

from umbel.operations.erasing import ErasedJobs
from umbel.operations.graphs import GraphOperations, RetriedGraph
from umbel.operations.job_documents import body_value, job_document, trace_id
from umbel.operations.job_search import FoundJobs, JobSearch
from umbel.operations.operations import FORGETTABLE, Operations
from umbel.operations.schedules import HistoryLine, ScheduleView
from umbel.operations.views import (
    Audit,
    AuditedTask,
    CodeChanges,
    DeployView,
    DeployWorkerView,
    Health,
    MissingTask,
    PoolView,
    QueueView,
    RunStatistics,
    RunView,
    TaskView,
    WorkerView,
)

__all__ = [
    "FORGETTABLE",
    "Audit",
    "AuditedTask",
    "CodeChanges",
    "DeployView",
    "DeployWorkerView",
    "ErasedJobs",
    "FoundJobs",
    "GraphOperations",
    "Health",
    "HistoryLine",
    "JobSearch",
    "MissingTask",
    "Operations",
    "PoolView",
    "QueueView",
    "RetriedGraph",
    "RunStatistics",
    "RunView",
    "ScheduleView",
    "TaskView",
    "WorkerView",
    "body_value",
    "job_document",
    "trace_id",
]
