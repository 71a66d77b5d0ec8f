"""Owns moving messages: publish, fetch under lease, extend, settle. The port and its adapters.

Called by: the publisher (publish), the router (the rest), operations (depths, purge, move).
Never: runs a task, decides an outcome, or knows which worker is best.
"""

from umbel.brokers.mapped import MappedTransport
from umbel.brokers.partly import PartlySplitBroker
from umbel.brokers.port import (
    Broker,
    Capabilities,
    Demand,
    Depth,
    DirectBroker,
    Ledger,
    Published,
    Taken,
    TimedBroker,
)
from umbel.brokers.split import SplitBroker
from umbel.brokers.transport import Arrival, Carry, Lane, Lost, Reply, Transport

__all__ = [
    "Arrival",
    "Broker",
    "Capabilities",
    "Carry",
    "Demand",
    "Depth",
    "DirectBroker",
    "Lane",
    "Ledger",
    "Lost",
    "MappedTransport",
    "PartlySplitBroker",
    "Published",
    "Reply",
    "SplitBroker",
    "Taken",
    "TimedBroker",
    "Transport",
]
