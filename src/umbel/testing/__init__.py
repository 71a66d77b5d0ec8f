"""Owns the tests that prove that an adapter keeps its port's promises: suites, a model, clocks.

Called by: the tests of adapters, here and in other projects.
Never: imported by code that runs jobs.
"""

from umbel.testing.backend import Adapters, OpenAdapters
from umbel.testing.clock import FakeClock, WrongClock, wrong_clocks

__all__ = ["Adapters", "FakeClock", "OpenAdapters", "WrongClock", "wrong_clocks"]
