"""Settlements, and what each outcome means for the job: the only ``match`` over outcomes."""

from __future__ import annotations

import msgspec

from umbel.messages.bodies import Body
from umbel.messages.envelopes import Envelope
from umbel.messages.joins import Growth
from umbel.messages.leases import Attempt, Failure, Lease
from umbel.messages.outcomes import (
    Cancelled,
    Expired,
    Failed,
    Interrupted,
    Outcome,
    Parked,
    Rejected,
    Retry,
    Snoozed,
    Succeeded,
)
from umbel.messages.states import State


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one delivery: its lease, its outcome, and what happens together with it.

    ``follow_ups`` are published in the same transaction: exactly when the outcome is recorded.
    """

    lease: Lease
    outcome: Outcome
    attempt: Attempt
    keep: bool = True
    """Whether a record is kept if the job succeeds."""
    follow_ups: tuple[Envelope, ...] = ()
    group: str = ""
    """The group of the job, if it has one: joins may have to be advanced."""
    growth: Growth | None = None
    """The jobs that replace the job, if it ends.

    It has no effect if the job's cancellation was requested while it ran: nothing of it is added,
    the job keeps its position, and a success is recorded as cancelled: see ``without_growth``.
    """


class Finish(msgspec.Struct, frozen=True):
    """The job leaves the table of live jobs and becomes a record in this final state."""

    state: State
    result: Body | None = None
    failure: Failure | None = None
    reason: str = ""
    keep_for: float | None = None


class Requeue(msgspec.Struct, frozen=True):
    """The job goes back to its queue, immediately or after a delay."""

    delay: float = 0.0
    costs_attempt: bool = False
    section: str | None = None
    gates: tuple[str, ...] | None = None
    """The gates that it has to pass from now on; the run is then not added to its history.

    None keeps its gates and adds the run."""


Disposition = Finish | Requeue


def without_growth(end: Finish, reason: str) -> Finish:
    """Return the end of a job that does not grow, because its cancellation was requested.

    Its result would be that of the job that replaces it, which does not exist.
    """
    return Finish(State.CANCELLED, reason=reason) if end.state is State.SUCCEEDED else end


def is_final(outcome: Outcome) -> bool:
    """Return whether the job ends with this outcome."""
    return not isinstance(outcome, Retry | Snoozed | Interrupted | Parked)


def disposition(outcome: Outcome) -> Disposition:
    """Return what an outcome means for the job."""
    match outcome:
        case Succeeded(result, keep_for):
            return Finish(State.SUCCEEDED, result=result, keep_for=keep_for)
        case Failed(failure):
            return Finish(State.BURIED, failure=failure, reason=failure.message)
        case Rejected(reason):
            return Finish(State.BURIED, reason=reason)
        case Cancelled(reason):
            return Finish(State.CANCELLED, reason=reason)
        case Expired():
            return Finish(State.EXPIRED, reason="expired before it could start")
        case Retry(_, delay, section):
            return Requeue(delay, costs_attempt=section is None, section=section)
        case Snoozed(delay):
            return Requeue(delay)
        case Interrupted(_, delay):
            return Requeue(delay)
        case Parked(gates):
            return Requeue(gates=gates)
