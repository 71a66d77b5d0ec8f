"""From a delivery to something that can run, or to the outcome that says why it cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from umbel.errors import BadMessage, UmbelError, UnknownTask
from umbel.messages import (
    ROUTE,
    BodyCodec,
    Cancelled,
    Delivery,
    Expired,
    Interrupted,
    MessageType,
    Outcome,
    Parked,
    Rejected,
    Slot,
    is_inbox,
    route_key,
)
from umbel.messages.columns import MALFORMED
from umbel.tasks import Job, Place, Pool, Registry, Retry, Run, StepKeeper, Task, Track


class Activation(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery with everything its run needs, decoded once."""

    delivery: Delivery
    task: Task[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    run: Run
    retry: Retry
    timeout: float | None
    track: Track
    unchecked: tuple[tuple[Pool, str], ...] = ()
    """Pools with the members it was given, to be checked before it begins."""


class Activator:
    """Resolves the task, decodes the arguments, applies what the call said differently."""

    def __init__(
        self,
        registry: Registry,
        codec: BodyCodec,
        on_progress: Callable[[Delivery, float, float | None], None],
        open_steps: Callable[[Run], StepKeeper] | None = None,
        place: Callable[[], Place] = lambda: Place("worker"),
        give_back: Callable[[Delivery, str], Outcome] = lambda _, reason: Interrupted(reason),
    ) -> None:
        self._registry = registry
        self.commands: Mapping[str, Task[..., Any]] = {}
        """Tasks of every worker's own, for messages to one worker alone."""
        self._place = place
        self._give_back = give_back
        self._codec = codec
        self._on_progress = on_progress
        self._open_steps = open_steps

    def activate(self, delivery: Delivery) -> Activation | Outcome:
        """Something to run, or the outcome of a message that never can."""
        if delivery.envelope.type is not MessageType.COMMAND:
            return Rejected(f"type: only {MessageType.COMMAND} can run, this is another message")
        malformed = delivery.envelope.headers.get(MALFORMED)
        if malformed is not None:
            return Rejected(malformed)
        expires = delivery.envelope.expires
        # By the store's clock, which said when it was claimed: this machine's may be wrong.
        if expires is not None and expires <= delivery.claimed:
            return Expired()
        try:
            return self._prepare(delivery)
        except UnknownTask as error:
            # A message to this worker alone, or one that no worker ever has a task for.
            if is_inbox(delivery.envelope.queue) or not _is_name(delivery.envelope.subject):
                return Rejected(f"subject: {error}")
            return self._give_back(delivery, f"this worker does not have the task: {error}")
        except BadMessage as error:
            return Rejected(str(error))
        except UmbelError as error:
            return Rejected(f"headers: {error}")

    def _prepare(self, delivery: Delivery) -> Activation | Outcome:
        envelope = delivery.envelope
        task = self._find(delivery)
        args, kwargs = task.parameters.decode(self._codec.decode(envelope.body))
        for slot in delivery.slots:
            if slot.rejected and slot.gate.startswith(ROUTE):
                key = route_key(slot.gate)
                return Cancelled(f"skipped: no worker has {key!r}, and {task.name} needs one")
            if slot.rejected:
                return Rejected(f"limit: {task.name} may not run at all now; its limit is 0")
        if task.announcement is not None and not is_inbox(envelope.queue):
            task = task.announcement
        elif not delivery.slots:
            gates = _gates(task, envelope.queue, args, kwargs)
            if gates:  # whoever sent it did not know
                return Parked(gates)
        declared, headers = task.declared, envelope.headers
        timeout = _timeout(headers["timeout"]) if "timeout" in headers else declared.timeout
        return Activation(
            delivery=delivery,
            task=task,
            args=args,
            kwargs=kwargs,
            run=Run(
                _job(delivery),
                delivery.lease,
                self._progress_of(delivery),
                delivery.slots,
                task,
                self._open_steps,
                self._place(),
            ),
            retry=_retry(headers.get("retry"), declared.retry),
            timeout=_shortest(timeout, declared.pool) if declared.pool else timeout,
            track=_track(headers["track"]) if "track" in headers else declared.track,
            unchecked=_unchecked(declared.pool, delivery.slots) if declared.pool else (),
        )

    def _find(self, delivery: Delivery) -> Task[..., Any]:
        """The task it is for. Raises UnknownTask, BadMessage."""
        name = delivery.envelope.subject
        command = self.commands.get(name)
        if command is None:
            return self._registry.find(name)
        if not is_inbox(delivery.envelope.queue) or any(slot.route for slot in delivery.slots):
            raise BadMessage("subject", f"{name}: give the worker it is for, .options(worker=...)")
        return command

    def _progress_of(self, delivery: Delivery) -> Callable[[float, float | None], None]:
        return lambda done, of: self._on_progress(delivery, done, of)


def _is_name(subject: str) -> bool:
    """Whether a task may have this name. Bytes that are no text were read as U+FFFD."""
    return subject.isprintable() and "\ufffd" not in subject


def _gates(
    task: Task[..., Any], queue: str, args: list[Any], kwargs: dict[str, Any]
) -> tuple[str, ...]:
    """What a job has to pass. Raises BadMessage: a token cannot be told."""
    try:
        gates = task.gates(queue, args, kwargs)
        if is_inbox(queue):  # it is where it was to go
            return tuple(gate for gate in gates if not gate.startswith(ROUTE))
        return gates
    except Exception as error:  # noqa: BLE001 - a function of the user's
        raise BadMessage("token", f"{type(error).__name__}: {error}") from None


def _job(delivery: Delivery) -> Job:
    envelope = delivery.envelope
    return Job(
        id=envelope.id,
        task=envelope.subject,
        queue=next((slot.home for slot in delivery.slots if slot.home), envelope.queue),
        attempt=delivery.attempt,
        deaths=delivery.deaths,
        priority=envelope.priority,
        created=envelope.created,
        claimed=delivery.claimed,
        traceparent=envelope.traceparent,
        headers=envelope.headers,
    )


def _unchecked(pools: Sequence[Pool], slots: Sequence[Slot]) -> tuple[tuple[Pool, str], ...]:
    members = {slot.gate: slot.member for slot in slots}
    return tuple(
        (pool, members[pool.rule.name])
        for pool in pools
        if pool.check is not None and pool.rule.name in members
    )


def _shortest(timeout: float | None, pools: Sequence[Pool]) -> float | None:
    """Of the timeout and of how long a member of each pool is kept."""
    several = (timeout, *(pool.ttl for pool in pools))
    return min((one for one in several if one is not None), default=None)


def _retry(text: str | None, declared: Retry) -> Retry:
    if text is None:
        return declared
    try:
        return declared.with_numbers(msgspec.json.decode(text))
    except (msgspec.MsgspecError, TypeError, RecursionError) as error:
        raise BadMessage("retry", f"not a retry policy: {error}") from None


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise BadMessage("timeout", f"{text!r} is not a number of seconds") from None
    if not 0 < seconds < float("inf"):
        raise BadMessage("timeout", f"{text!r} must be above 0")
    return seconds


def _track(text: str) -> Track:
    try:
        return Track(text)
    except ValueError:
        raise BadMessage("track", f"{text!r} is none of {', '.join(Track)}") from None
