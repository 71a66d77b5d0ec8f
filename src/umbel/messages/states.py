"""The state table of a job, written once. SQL constraints and docs are checked against it.

::

            publish                          due
      ┌────────┴─────────┐            ┌───────────────┐
      ▼                  ▼            │               ▼
    queued ◀──────── scheduled ───────┘            running ──▶ succeeded
      │  ▲                ▲                          │ │ │
      │  │ interrupted,   │  retry, snooze           │ │ └───▶ buried ──▶ queued (replayed)
      │  │ worker died    └──────────────────────────┘ │
      │  └─────────────────────────────────────────────┘
      └──▶ cancelled · expired (so may scheduled)

A job that has to pass gates is ``waiting`` wherever another would be queued; it is queued when it
has passed all of them.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a job is. ``buried`` jobs keep payload and history and can be replayed."""

    SCHEDULED = "scheduled"
    WAITING = "waiting"
    """In the line of a gate."""
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    BURIED = "buried"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def finished(self) -> bool:
        """Whether the job will not run again unless somebody replays it."""
        return self in TERMINAL


LIVE = frozenset({State.SCHEDULED, State.WAITING, State.QUEUED, State.RUNNING})
TERMINAL = frozenset({State.SUCCEEDED, State.BURIED, State.CANCELLED, State.EXPIRED})

TRANSITIONS: dict[State, frozenset[State]] = {
    State.SCHEDULED: frozenset({State.WAITING, State.QUEUED, State.CANCELLED, State.EXPIRED}),
    State.WAITING: frozenset({State.QUEUED, State.CANCELLED, State.EXPIRED}),
    State.QUEUED: frozenset({State.RUNNING, State.CANCELLED, State.EXPIRED}),
    State.RUNNING: TERMINAL | {State.SCHEDULED, State.WAITING, State.QUEUED},
    State.SUCCEEDED: frozenset(),
    State.BURIED: frozenset({State.QUEUED}),
    State.CANCELLED: frozenset({State.QUEUED}),
    State.EXPIRED: frozenset({State.QUEUED}),
}
"""From each state, the states a job may go to next. Replay is the only way out of a final one."""
