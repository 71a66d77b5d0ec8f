"""How a run ended, as an outcome. Pure: no clock, no I/O, no randomness."""

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
from umbel.tasks import Section, Track
from umbel.tasks.failures import describe
from umbel.tasks.snooze import Snooze
from umbel.worker.activation import Activation
from umbel.worker.stops import Stop, Unfit, Why


def conclude(
    activation: Activation, value: Any, error: BaseException | None, codec: BodyCodec
) -> Outcome:
    """How a run ended. Whatever the task's own classes do meanwhile, there is an outcome."""
    fatal = activation.run.fatal
    try:
        # Whatever the task made of it: caught, or wrapped in a group of others.
        if fatal is not None and not isinstance(error, Stop):
            return Failed(describe(fatal))
        return returned(activation, value, codec) if error is None else raised(activation, error)
    except BaseException as broken:  # noqa: BLE001 - user code: policies, __instancecheck__, …
        text = f"how it ended could not be decided: {type(broken).__name__}"
        return Failed(Failure(f"umbel.errors:{JobFailed.__name__}", text))


def returned(activation: Activation, value: Any, codec: BodyCodec) -> Outcome:
    """The task returned. A value that cannot be kept is final: a re-run would return it again."""
    if activation.track is not Track.RESULT:
        return Succeeded()
    try:
        return Succeeded(
            codec.encode(value, what=f"result of {activation.task.name}", name="result")
        )
    except UmbelError as error:
        return Failed(describe(error))


def raised(activation: Activation, error: BaseException) -> Outcome:
    """The task raised, or was stopped."""
    if isinstance(error, Stop):
        return stopped(activation, error)
    if isinstance(error, Snooze):
        return Snoozed(error.delay)
    section = activation.run.mark_of(error)
    if isinstance(section, Section):
        return _section_failed(activation, error, section)
    if not activation.retry.applies_to(error):
        return Failed(describe(error))
    delivery = activation.delivery
    delay = activation.retry.delay(delivery.attempt, delivery.id)
    return Failed(describe(error)) if delay is None else Retry(describe(error), delay)


def stopped(activation: Activation, stop: Stop) -> Outcome:
    """The worker stopped the task."""
    match stop.why:
        case Why.TIMEOUT:
            return raised(activation, TimeoutError(f"timed out after {activation.timeout:g} s"))
        case Why.CANCEL | Why.DUPLICATE:
            return Cancelled(stop.reason)
        case Why.UNFIT:
            unfit = (stop.member,) if isinstance(stop, Unfit) else ()
            return Parked(activation.delivery.envelope.gates, unfit)
        case Why.INTERRUPT | Why.LOST:
            return Interrupted(stop.reason)


def _section_failed(activation: Activation, error: BaseException, section: Section) -> Outcome:
    """A retry section pays from its own counter; a poisonous one is final."""
    if section.policy is None or not section.policy.applies_to(error):
        return Failed(describe(error))
    delivery = activation.delivery
    tries = delivery.sections.get(section.name, 0) + 1
    delay = section.policy.delay(tries, f"{delivery.id}:{section.name}")
    if delay is None:
        return Failed(describe(error))
    return Retry(describe(error), delay, section.name)
