"""Owns the arithmetic of trying again, of giving up and of blame. Pure: numbers in, numbers out.

Called by: retry policies of tasks, every loop that reconnects, brokers that recover jobs.
Never: sleeps, reads the clock, draws random numbers.
"""

from umbel.resilience.backoff import Backoff, spread
from umbel.resilience.breaker import Breaker, Circuit
from umbel.resilience.suspicion import Verdict, judge

__all__ = ["Backoff", "Breaker", "Circuit", "Verdict", "judge", "spread"]
