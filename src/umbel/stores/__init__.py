"""Owns what is remembered, from records to deployments. One narrow port a role.

Called by: the router, the worker's heartbeat, operations, handles.
Never: moves messages or decides anything; each role states what holds after a crash.
"""

from umbel.stores.control import MISSING, NO_WORKER, Control, ControlState, Pause, Scope
from umbel.stores.deployments import (
    DEPLOY,
    Deployment,
    DeploymentPlan,
    Deployments,
    Run,
    RunTimes,
    Waiting,
)
from umbel.stores.gates import Condition, Gate, Gates, PoolMember
from umbel.stores.records import (
    UNCHANGED,
    Changes,
    JobFilter,
    ProgressNote,
    PromptRecords,
    Records,
)
from umbel.stores.registry import Hearing, Member, Registry, WorkerEntry
from umbel.stores.routes import Route, Routes, Seat
from umbel.stores.steps import NoTransactions, Steps, Transactions

__all__ = [
    "DEPLOY",
    "MISSING",
    "NO_WORKER",
    "UNCHANGED",
    "Changes",
    "Condition",
    "Control",
    "ControlState",
    "Deployment",
    "DeploymentPlan",
    "Deployments",
    "Gate",
    "Gates",
    "Hearing",
    "JobFilter",
    "Member",
    "NoTransactions",
    "Pause",
    "PoolMember",
    "ProgressNote",
    "PromptRecords",
    "Records",
    "Registry",
    "Route",
    "Routes",
    "Run",
    "RunTimes",
    "Scope",
    "Seat",
    "Steps",
    "Transactions",
    "Waiting",
    "WorkerEntry",
]
