"""Owns the arithmetic of trying again and of blame. Pure: called with numbers, gives numbers.

Called by: retry policies of tasks, every loop that reconnects, brokers that recover jobs.
Never: sleeps, reads the clock, draws random numbers.
"""

from umbel.resilience.backoff import Backoff, spread
from umbel.resilience.suspicion import Verdict, judge

__all__ = ["Backoff", "Verdict", "judge", "spread"]
