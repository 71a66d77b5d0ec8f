"""Pairs: a transport carries the messages, and a store elsewhere records the jobs.

Any transport works with any store. Whether a worker holds a job is decided by the store alone; a
transport may duplicate, delay or lose messages.
"""

from umbel.backends.pairs.backend import PairBackend
from umbel.backends.pairs.broker import SplitBroker
from umbel.backends.pairs.multi_transport import MappedTransport
from umbel.backends.pairs.partial_broker import PartlySplitBroker

__all__ = ["MappedTransport", "PairBackend", "PartlySplitBroker", "SplitBroker"]
