"""Seeds that once found a real bug.

A change of the simulation, or of the workers' calls to the database, changes the run of a seed. So
each of these bugs is also reproduced in ``test_regressions.py`` or planted in ``planted_bugs.py``.
"""

from __future__ import annotations

SEEDS_THAT_ONCE_FAILED: dict[int, str] = {
    15: "a worker stopped, and a claim that it had never received was counted as a death",
    49: "a reaper took the time before a slow answer and removed a worker with a recent heartbeat",
    67: "a worker waited for the control state and sent no heartbeat",
    612: "a worker whose registration was not confirmed held jobs and did not stop itself",
    7002: "a claim with the time of a briefly wrong clock was treated as undelivered",
}
