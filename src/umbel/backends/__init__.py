"""Owns brokers and stores: the ports, and for each server a folder with all code that knows it.

Called by: the publisher, the router, operations, links, and the application, which opens backends.
Never: runs a task, decides an outcome, or knows which worker is best.
"""

from umbel.backends.backend import Backend, Roles, StoreBackend
from umbel.backends.broker import (
    Broker,
    Capabilities,
    Claimed,
    Demand,
    Depth,
    JobStore,
    Published,
    TimedBroker,
)
from umbel.backends.control import MISSING, NO_WORKER, Control, ControlState, Pause, Scope
from umbel.backends.deployments import (
    DEPLOY,
    Deployment,
    DeploymentPlan,
    Deployments,
    Run,
    RunTimes,
    Waiting,
)
from umbel.backends.gates import Condition, Gate, Gates, PoolMember
from umbel.backends.records import (
    UNCHANGED,
    BlockingRecords,
    Changes,
    JobFilter,
    ProgressNote,
    Records,
)
from umbel.backends.registry import InboxReceipt, RegisteredWorker, Registry, WorkerEntry
from umbel.backends.routes import Route, Routes, WorkerIndex
from umbel.backends.steps import NoTransactions, Steps, Transactions
from umbel.backends.transport import Arrival, Lane, OnLaneMissing, OpenTransport, Reply, Transport

__all__ = [
    "DEPLOY",
    "MISSING",
    "NO_WORKER",
    "UNCHANGED",
    "Arrival",
    "Backend",
    "BlockingRecords",
    "Broker",
    "Capabilities",
    "Changes",
    "Claimed",
    "Condition",
    "Control",
    "ControlState",
    "Demand",
    "Deployment",
    "DeploymentPlan",
    "Deployments",
    "Depth",
    "Gate",
    "Gates",
    "InboxReceipt",
    "JobFilter",
    "JobStore",
    "Lane",
    "NoTransactions",
    "OnLaneMissing",
    "OpenTransport",
    "Pause",
    "PoolMember",
    "ProgressNote",
    "Published",
    "Records",
    "RegisteredWorker",
    "Registry",
    "Reply",
    "Roles",
    "Route",
    "Routes",
    "Run",
    "RunTimes",
    "Scope",
    "Steps",
    "StoreBackend",
    "TimedBroker",
    "Transactions",
    "Transport",
    "Waiting",
    "WorkerEntry",
    "WorkerIndex",
]
