"""Owns the path between brokers and workers: fetch, admit, settle, heartbeats, recovery.

Called by: a worker, through its Intake port, which Router implements.
Never: runs a task or decides the outcome of a run.
"""

from umbel.router.dispatcher import Dispatcher, SharedRouter
from umbel.router.duplicate_filter import DuplicateFilter
from umbel.router.missing_tasks import MissingTasks
from umbel.router.ordering import Experience, Load, strategy
from umbel.router.router import Router
from umbel.router.upkeep import (
    DeadWorkerReaper,
    DeploymentReaper,
    Pruner,
    SharedInterval,
    StoreSweeper,
    one_worker,
)

__all__ = [
    "DeadWorkerReaper",
    "DeploymentReaper",
    "Dispatcher",
    "DuplicateFilter",
    "Experience",
    "Load",
    "MissingTasks",
    "Pruner",
    "Router",
    "SharedInterval",
    "SharedRouter",
    "StoreSweeper",
    "one_worker",
    "strategy",
]
