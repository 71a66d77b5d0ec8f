"""Owns the arithmetic of retries, circuit breakers, rates and blame for deaths. It is pure.

Called by: retry policies of tasks, every loop that reconnects, brokers that recover jobs.
Never: sleeps, reads the clock, draws random numbers.
"""

from umbel.resilience.backoff import Backoff, spread
from umbel.resilience.breaker import Breaker, Circuit
from umbel.resilience.pace import Pace
from umbel.resilience.suspicion import LAPSED_TOO_OFTEN, MAX_LAPSES, Verdict, judge

__all__ = [
    "LAPSED_TOO_OFTEN",
    "MAX_LAPSES",
    "Backoff",
    "Breaker",
    "Circuit",
    "Pace",
    "Verdict",
    "judge",
    "spread",
]
