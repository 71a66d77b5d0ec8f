"""The state table of a job. Tests check SQL constraints and docs against it.

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

A job that waits for other jobs is ``blocked`` before it is queued or scheduled; see ``joins``. A
job that does not run may be resolved: it then has any final state.

A job that has to pass gates is ``waiting`` where another job would be queued. It is queued when it
has passed all of them.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The state of a job. A ``buried`` job keeps its payload and history and can be replayed."""

    BLOCKED = "blocked"
    """It waits for a join: other jobs have to end first."""
    SCHEDULED = "scheduled"
    WAITING = "waiting"
    """In the waiting list of a gate."""
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    BURIED = "buried"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def finished(self) -> bool:
        """Whether the job has ended. It runs again only if it is replayed."""
        return self in TERMINAL


LIVE = frozenset({State.BLOCKED, State.SCHEDULED, State.WAITING, State.QUEUED, State.RUNNING})
TERMINAL = frozenset({State.SUCCEEDED, State.BURIED, State.CANCELLED, State.EXPIRED})

TRANSITIONS: dict[State, frozenset[State]] = {
    State.BLOCKED: TERMINAL | {State.SCHEDULED, State.WAITING, State.QUEUED},
    State.SCHEDULED: frozenset({State.WAITING, State.QUEUED, State.CANCELLED, State.EXPIRED}),
    State.WAITING: frozenset({State.QUEUED, State.CANCELLED, State.EXPIRED}),
    State.QUEUED: frozenset({State.RUNNING, State.CANCELLED, State.EXPIRED}),
    State.RUNNING: TERMINAL | {State.SCHEDULED, State.WAITING, State.QUEUED},
    State.SUCCEEDED: frozenset({State.QUEUED, State.BLOCKED}),
    State.BURIED: frozenset({State.QUEUED, State.BLOCKED}),
    State.CANCELLED: frozenset({State.QUEUED, State.BLOCKED}),
    State.EXPIRED: frozenset({State.QUEUED, State.BLOCKED}),
}
"""The states that may follow each state. A job leaves a final state only by replay, or if it is
reopened with its graph."""
