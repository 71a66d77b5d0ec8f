"""Decides the outcome of a run that has ended. Pure: no clock, no I/O, no randomness."""

from __future__ import annotations

from typing import Any

from umbel.errors import JobFailed, UmbelError
from umbel.messages import (
    BodyCodec,
    Cancelled,
    Failed,
    Failure,
    Interrupted,
    Outcome,
    Parked,
    Retry,
    Snoozed,
    Succeeded,
)
from umbel.messages.nodes import with_mark
from umbel.tasks import Section, Track
from umbel.tasks.composing import Composable
from umbel.tasks.failures import describe
from umbel.tasks.replacing import ChunkResult, Finished
from umbel.tasks.snooze import Snooze
from umbel.worker.runs import Activation, EndedRun
from umbel.worker.stops import Stop, StopCause, Unfit


def decide_outcome(ended: EndedRun, codec: BodyCodec, now: float) -> Outcome:
    """Return the outcome of a run. Never raises, whatever the task's own classes do."""
    activation, error = ended.activation, ended.error
    fatal = activation.run.fatal
    try:
        # A fatal error counts even if the task caught it or wrapped it in an exception group.
        if fatal is not None and not isinstance(error, Stop):
            return Failed(describe(fatal))
        if error is None:
            return outcome_of_return(activation, ended.value, codec)
        return outcome_of_error(activation, error, now)
    except BaseException as broken:  # noqa: BLE001 - user code: policies, __instancecheck__, …
        text = f"its outcome could not be decided: {type(broken).__name__}"
        return Failed(Failure(f"umbel.errors:{JobFailed.__name__}", text))


def outcome_of_return(activation: Activation, value: Any, codec: BodyCodec) -> Outcome:
    """Return the outcome of a task that returned.

    A value that cannot be encoded is a final failure: another run would return it again.
    """
    chain: str | None = None
    failed: list[int] = []
    if isinstance(value, Finished):
        value, chain = value.value, activation.node.chain if activation.node is not None else None
    if misuse := _misused_canvas(activation, value):
        return Failed(describe(misuse))
    if isinstance(value, ChunkResult):
        value, failed = value.values, value.failed
    if activation.track is not Track.RESULT:
        return Succeeded(keep_for=activation.keep)
    try:
        what = f"result of {activation.task.name}"
        body = codec.encode(value, what=what, name="result")
    except UmbelError as error:
        return Failed(describe(error))
    if chain is not None:
        body = with_mark(body, "finish", chain)
    if failed:
        body = with_mark(body, "failed", ".".join(map(str, failed)))
    return Succeeded(body, activation.keep)


def _misused_canvas(activation: Activation, value: Any) -> UmbelError | None:
    """Return the error of a task that returned a canvas, or did not return its replacement."""
    if isinstance(value, Composable):
        return UmbelError(
            f"{activation.task.name} returned a canvas: write return current.replace(canvas)"
        )
    if activation.run.replacement is not None and isinstance(value, ChunkResult):
        return UmbelError(
            f"{activation.task.name} called current.replace(...) in a chunk, which has one job for"
            " several calls; use map or starmap instead of chunks"
        )
    if activation.run.replacement is not None:
        return UmbelError(
            f"{activation.task.name} called current.replace(...) and returned something else: write"
            " return current.replace(...)"
        )
    return None


def outcome_of_error(activation: Activation, error: BaseException, now: float) -> Outcome:
    """Return the outcome of a task that raised or was stopped."""
    if isinstance(error, Stop):
        return outcome_of_stop(activation, error, now)
    if isinstance(error, Snooze):
        return Snoozed(error.delay)
    section = activation.run.mark_of(error)
    if isinstance(section, Section):
        return _outcome_of_section(activation, error, section, now)
    delivery = activation.delivery
    delay = activation.retry.delay_after(error, delivery.attempt, delivery.id, now)
    return Failed(describe(error)) if delay is None else Retry(describe(error), delay)


def outcome_of_stop(activation: Activation, stop: Stop, now: float) -> Outcome:
    """Return the outcome of a task that the worker stopped."""
    match stop.cause:
        case StopCause.TIMEOUT:
            error = TimeoutError(f"timed out after {activation.timeout:g} s")
            return outcome_of_error(activation, error, now)
        case StopCause.CANCEL | StopCause.DUPLICATE:
            return Cancelled(stop.reason)
        case StopCause.UNFIT:
            unfit = (stop.member,) if isinstance(stop, Unfit) else ()
            return Parked(activation.delivery.envelope.gates, unfit)
        case StopCause.INTERRUPT | StopCause.LOST:
            return Interrupted(stop.reason)


def _outcome_of_section(
    activation: Activation, error: BaseException, section: Section, now: float
) -> Outcome:
    """A retry section has its own counter of tries; an error in a poisonous section is final."""
    if section.policy is None:
        return Failed(describe(error))
    delivery = activation.delivery
    tries = delivery.sections.get(section.name, 0) + 1
    delay = section.policy.delay_after(error, tries, f"{delivery.id}:{section.name}", now)
    if delay is None:
        return Failed(describe(error))
    return Retry(describe(error), delay, section.name)
