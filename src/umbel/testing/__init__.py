"""Owns the proof that an adapter keeps its port's promises: suites, a model, a clock to move.

Called by: the tests of adapters, here and in other projects.
Never: imported by code that runs jobs.
"""

from umbel.testing.backend import Backend, Backends
from umbel.testing.clock import FakeClock

__all__ = ["Backend", "Backends", "FakeClock"]
