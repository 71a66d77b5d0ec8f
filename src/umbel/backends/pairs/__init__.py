"""Pairs: a transport carries the messages, and a store elsewhere records the jobs.

Any transport works with any store. Whether a worker holds a job is decided by the store alone; a
transport may duplicate, delay or lose messages.
"""

from umbel.backends.pairs.backend import PairBackend
from umbel.backends.pairs.broker import PairBroker
from umbel.backends.pairs.multi_transport import MultiTransport
from umbel.backends.pairs.partial_broker import PartialPairBroker

__all__ = ["MultiTransport", "PairBackend", "PairBroker", "PartialPairBroker"]
