"""Owns what operators read and change: jobs, queues, gates, workers, pauses, deployments, health.

Called by: the command line and other user interfaces.
Never: publishes or runs tasks. It asks only the store, never a worker, so it answers at once.
"""

from umbel.graphs import graph_note
from umbel.operations.buried_groups import BuriedGroup, error_shape, group_buried, group_key
from umbel.operations.erasing import ErasedJobs
from umbel.operations.graph_documents import (
    GRAPH_STATES,
    graph_document,
    graph_state,
)
from umbel.operations.graph_values import NodeInput
from umbel.operations.graphs import FoundGraphs, GraphOperations, RetriedGraph, WorkflowVersion
from umbel.operations.job_documents import body_value, job_document, trace_id
from umbel.operations.job_search import FoundJobs, JobSearch
from umbel.operations.operations import FORGETTABLE, Operations
from umbel.operations.overview import LIVE_STATES, Overview, Problem, read_overview
from umbel.operations.recording import record_changes
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
    "GRAPH_STATES",
    "LIVE_STATES",
    "Audit",
    "AuditedTask",
    "BuriedGroup",
    "CodeChanges",
    "DeployView",
    "DeployWorkerView",
    "ErasedJobs",
    "FoundGraphs",
    "FoundJobs",
    "GraphOperations",
    "Health",
    "HistoryLine",
    "JobSearch",
    "MissingTask",
    "NodeInput",
    "Operations",
    "Overview",
    "PoolView",
    "Problem",
    "QueueView",
    "RetriedGraph",
    "RunStatistics",
    "RunView",
    "ScheduleView",
    "TaskView",
    "WorkerView",
    "WorkflowVersion",
    "body_value",
    "error_shape",
    "graph_document",
    "graph_note",
    "graph_state",
    "group_buried",
    "group_key",
    "job_document",
    "read_overview",
    "record_changes",
    "trace_id",
]
