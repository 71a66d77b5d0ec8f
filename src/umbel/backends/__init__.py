"""Owns brokers and stores: the ports, and for each server a folder with all code that knows it.

Called by: the publisher, the router, operations, links, and the application, which opens backends.
Never: runs a task, decides an outcome, or knows which worker is best.
"""

from umbel.backends.backend import Backend, Roles, StoreBackend
from umbel.backends.broker import (
    BlockingBroker,
    Broker,
    Capabilities,
    Demand,
    Depth,
    JobStore,
    Published,
    Taken,
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
    Changes,
    JobFilter,
    ProgressNote,
    PromptRecords,
    Records,
)
from umbel.backends.registry import Hearing, Member, Registry, WorkerEntry
from umbel.backends.routes import Route, Routes, Seat
from umbel.backends.steps import NoTransactions, Steps, Transactions
from umbel.backends.transport import Arrival, Lane, Lost, OpenTransport, Reply, Transport

__all__ = [
    "DEPLOY",
    "MISSING",
    "NO_WORKER",
    "UNCHANGED",
    "Arrival",
    "Backend",
    "BlockingBroker",
    "Broker",
    "Capabilities",
    "Changes",
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
    "Hearing",
    "JobFilter",
    "JobStore",
    "Lane",
    "Lost",
    "Member",
    "NoTransactions",
    "OpenTransport",
    "Pause",
    "PoolMember",
    "ProgressNote",
    "PromptRecords",
    "Published",
    "Records",
    "Registry",
    "Reply",
    "Roles",
    "Route",
    "Routes",
    "Run",
    "RunTimes",
    "Scope",
    "Seat",
    "Steps",
    "StoreBackend",
    "Taken",
    "TimedBroker",
    "Transactions",
    "Transport",
    "Waiting",
    "WorkerEntry",
]
