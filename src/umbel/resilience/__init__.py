"""Owns the arithmetic of trying again. Pure: called with numbers, gives numbers.

Called by: retry policies of tasks, and every loop that reconnects.
Never: sleeps, reads the clock, draws random numbers.
"""

from umbel.resilience.backoff import Backoff, spread

__all__ = ["Backoff", "spread"]
