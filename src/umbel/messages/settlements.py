"""From how a run ended to what a broker has to do. The one ``match`` over outcomes."""

from __future__ import annotations

import msgspec

from umbel.messages.bodies import Body
from umbel.messages.envelopes import Envelope
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
    """The end of one delivery: under which lease, how, and what else happens with it.

    ``follow_ups`` are published and ``releases`` freed in the same step, so that they happen
    exactly when the outcome is recorded.
    """

    lease: Lease
    outcome: Outcome
    attempt: Attempt
    keep: bool = True
    """Whether a record stays behind when the job succeeds."""
    follow_ups: tuple[Envelope, ...] = ()
    releases: tuple[Lease, ...] = ()


class Finish(msgspec.Struct, frozen=True):
    """The job leaves the hot table and becomes a record in this final state."""

    state: State
    result: Body | None = None
    failure: Failure | None = None
    reason: str = ""


class Again(msgspec.Struct, frozen=True):
    """The job goes back to its queue, at once or after a delay."""

    delay: float = 0.0
    costs_attempt: bool = False
    section: str | None = None
    gates: tuple[str, ...] | None = None
    """What it has to pass from now on; then its story does not grow. None leaves both alone."""


Disposition = Finish | Again


def is_final(outcome: Outcome) -> bool:
    """Whether the job ends with it."""
    return not isinstance(outcome, Retry | Snoozed | Interrupted | Parked)


def disposition(outcome: Outcome) -> Disposition:
    """What an outcome means for the job."""
    match outcome:
        case Succeeded(result):
            return Finish(State.SUCCEEDED, result=result)
        case Failed(failure):
            return Finish(State.BURIED, failure=failure, reason=failure.message)
        case Rejected(reason):
            return Finish(State.BURIED, reason=reason)
        case Cancelled(reason):
            return Finish(State.CANCELLED, reason=reason)
        case Expired():
            return Finish(State.EXPIRED, reason="expired before it could start")
        case Retry(_, delay, section):
            return Again(delay, costs_attempt=section is None, section=section)
        case Snoozed(delay):
            return Again(delay)
        case Interrupted(_, delay):
            return Again(delay)
        case Parked(gates):
            return Again(gates=gates)
