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
from umbel.backends.control import Control
from umbel.backends.coordination import (
    CANCELLATIONS,
    LIMITS,
    PAUSES,
    Coordination,
    Entry,
    Page,
    Put,
    json_value,
)
from umbel.backends.erasing import NamespaceEraser
from umbel.backends.gates import Condition, Gate, Gates, PoolMember
from umbel.backends.joins import Joins
from umbel.backends.records import (
    UNCHANGED,
    BlockingRecords,
    Changes,
    JobFilter,
    JobPage,
    ProgressNote,
    Records,
    Run,
    RunTimes,
    Waiting,
)
from umbel.backends.registry import InboxReceipt, RegisteredWorker, Registry, WorkerEntry
from umbel.backends.routes import Route, Routes, WorkerIndex
from umbel.backends.steps import NoTransactions, Steps, Transactions
from umbel.backends.transport import Arrival, Lane, OnLaneMissing, OpenTransport, Reply, Transport

__all__ = [
    "CANCELLATIONS",
    "LIMITS",
    "PAUSES",
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
    "Coordination",
    "Demand",
    "Depth",
    "Entry",
    "Gate",
    "Gates",
    "InboxReceipt",
    "JobFilter",
    "JobPage",
    "JobStore",
    "Joins",
    "Lane",
    "NamespaceEraser",
    "NoTransactions",
    "OnLaneMissing",
    "OpenTransport",
    "Page",
    "PoolMember",
    "ProgressNote",
    "Published",
    "Put",
    "Records",
    "RegisteredWorker",
    "Registry",
    "Reply",
    "Roles",
    "Route",
    "Routes",
    "Run",
    "RunTimes",
    "Steps",
    "StoreBackend",
    "TimedBroker",
    "Transactions",
    "Transport",
    "Waiting",
    "WorkerEntry",
    "WorkerIndex",
    "json_value",
]
