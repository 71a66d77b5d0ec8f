"""Real workers in virtual time. A seed determines a run completely.

Owns: a timeline, simulated processes and faults, and an auditor that checks the promises.
Called by: tests, and ``python -m umbel.testing.simulation``.
Never: sleeps, opens a socket, starts a thread or reads a clock.
"""

from umbel.testing.simulation.running import (
    Outcome,
    Tally,
    simulate,
    simulate_many,
    simulate_some,
)

__all__ = ["Outcome", "Tally", "simulate", "simulate_many", "simulate_some"]
