"""Owns the way between brokers and a worker: fetch, admit, settle, keep alive, put back.

Called by: a worker, through its Intake port, which Router satisfies.
Never: runs a task or decides how a run ended.
"""

from umbel.router.dispatcher import Dispatcher, SharedRouter
from umbel.router.missing import MissingTasks
from umbel.router.ordering import Experience, Load, strategy
from umbel.router.receiver import Receiver
from umbel.router.router import Router
from umbel.router.upkeep import DeadWorkerReaper, DeploymentReaper, Pruner

__all__ = [
    "DeadWorkerReaper",
    "DeploymentReaper",
    "Dispatcher",
    "Experience",
    "Load",
    "MissingTasks",
    "Pruner",
    "Receiver",
    "Router",
    "SharedRouter",
    "strategy",
]
