"""Owns the proof that an adapter keeps its port's promises: suites, a model, clocks.

Called by: the tests of adapters, here and in other projects.
Never: imported by code that runs jobs.
"""

from umbel.testing.backend import Backend, Backends
from umbel.testing.clock import FakeClock, WrongClock, wrong_clocks

__all__ = ["Backend", "Backends", "FakeClock", "WrongClock", "wrong_clocks"]
