"""Turns a delivery into an activation, or into the outcome of a job that cannot run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec

from umbel.errors import BadMessage, UmbelError, UnknownTask
from umbel.graphs import Values
from umbel.graphs.arguments import insert
from umbel.messages import (
    AFFINITY_KEY,
    NODE_HEADER,
    ROUTE_PREFIX,
    BodyCodec,
    Cancelled,
    Delivery,
    Envelope,
    Expired,
    Interrupted,
    MessageType,
    Outcome,
    Parked,
    Rejected,
    Slot,
    is_inbox,
    read_node,
    route_gate,
    route_key,
)
from umbel.messages.columns import MALFORMED
from umbel.tasks import Job, Pool, Registry, Retry, Run, Task, Track
from umbel.tasks.policies import storable_name
from umbel.worker.chunks import chunk_task
from umbel.worker.incarnation import Incarnation
from umbel.worker.missing_tasks import MissingTasks
from umbel.worker.progress import ProgressNotes
from umbel.worker.runs import Activation
from umbel.worker.step_writer import StepWriter
from umbel.worker.steps import RunSteps

_MAX_SECONDS = 10_000_000_000.0
"""About three centuries. Databases refuse later times."""


class Activator:
    """Finds the task, decodes the arguments, and applies the options of the call."""

    def __init__(
        self,
        registry: Registry,
        codec: BodyCodec,
        *,
        incarnation: Incarnation,
        progress: ProgressNotes,
        steps: StepWriter | None = None,
        missing: MissingTasks | None = None,
        commands: Mapping[str, Task[..., Any]] = MappingProxyType({}),
    ) -> None:
        self._registry = registry
        self._codec = codec
        self._incarnation = incarnation
        self._progress = progress
        self._open_steps = None if steps is None else partial(RunSteps, steps)
        self._missing = missing
        self._commands = commands

    def activate(self, delivery: Delivery, results: Values = ()) -> Activation | Outcome:
        """Return what its run needs, or the outcome of a job that cannot run.

        ``results`` are arguments that are results of other nodes of its graph.
        """
        if delivery.envelope.type is not MessageType.COMMAND:
            return Rejected(f"type: only {MessageType.COMMAND} can run, this is another message")
        malformed = delivery.envelope.headers.get(MALFORMED)
        if malformed is not None:
            return Rejected(malformed)
        expires = delivery.envelope.expires
        # Both times are by the store's clock; this machine's clock may be wrong.
        if expires is not None and expires <= delivery.claimed:
            return Expired()
        try:
            return self._prepare(delivery, results)
        except UnknownTask as error:
            # No other worker could run a message to this worker, or one whose name is malformed.
            if is_inbox(delivery.envelope.queue) or not _is_name(delivery.envelope.subject):
                return Rejected(f"subject: {error}")
            reason = f"this worker does not have the task: {error}"
            if self._missing is None:
                return Interrupted(reason)
            return self._missing.give_back(delivery, reason)
        except BadMessage as error:
            return Rejected(str(error))
        except UmbelError as error:
            return Rejected(f"headers: {error}")

    def _prepare(self, delivery: Delivery, results: Values) -> Activation | Outcome:
        envelope = delivery.envelope
        task = self._find(delivery)
        data = self._codec.decode(envelope.body)
        for keys, value in results:
            insert(data, keys, value)
        node, retry = None, _retry(envelope.headers.get("retry"), task.declared.retry)
        if NODE_HEADER in envelope.headers:
            node = read_node(envelope.headers[NODE_HEADER])
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        gated = task
        if node is not None and node.kind == "chunk":  # it passes the gates of its task, as one job
            task = chunk_task(task, data, node, delivery, retry)
        else:
            args, kwargs = task.parameters.decode(data)
        for slot in delivery.slots:
            if slot.rejected and slot.gate.startswith(ROUTE_PREFIX):
                key = route_key(slot.gate)
                return Cancelled(f"skipped: no worker has {key!r}, and {task.name} needs one")
            if slot.rejected:
                return Rejected(f"limit: {task.name} may not run at all now; its limit is 0")
        if task.fan_out_task is not None and not is_inbox(envelope.queue):
            task = task.fan_out_task
        elif not delivery.slots and (gated is task or not gated.has_tokens(envelope.queue)):
            gates = _gates(gated, envelope, args, kwargs)
            if gates:  # the sender did not know the task's gates
                return Parked(gates)
        declared, headers = task.declared, envelope.headers
        timeout = _seconds(headers, "timeout", declared.timeout)
        track = _track(headers["track"]) if "track" in headers else declared.track
        return Activation(
            delivery=delivery,
            task=task,
            args=args,
            kwargs=kwargs,
            run=Run(
                job_of(delivery),
                delivery.lease,
                partial(self._progress.note, delivery),
                delivery.slots,
                task,
                self._open_steps,
                self._incarnation.worker,
            ),
            retry=retry,
            timeout=_shortest(timeout, declared.pool) if declared.pool else timeout,
            track=track if node is None else Track.RESULT,  # other nodes read it
            node=node,
            keep=_seconds(headers, "keep", declared.keep),
            unchecked=_unchecked(declared.pool, delivery.slots) if declared.pool else (),
        )

    def _find(self, delivery: Delivery) -> Task[..., Any]:
        """Return the task that the delivery is for. Raise UnknownTask, BadMessage."""
        name = delivery.envelope.subject
        command = self._commands.get(name)
        if command is None:
            return self._registry.find(name)
        if not is_inbox(delivery.envelope.queue) or any(slot.route for slot in delivery.slots):
            raise BadMessage("subject", f"{name}: give the worker it is for, .options(worker=...)")
        return command


def _is_name(subject: str) -> bool:
    """Whether a task may have this name. Bytes that are not text were decoded to U+FFFD."""
    return subject.isprintable() and "\ufffd" not in subject


def _gates(
    task: Task[..., Any], envelope: Envelope, args: list[Any], kwargs: dict[str, Any]
) -> tuple[str, ...]:
    """Return the gates that a job has to pass. Raise BadMessage if a token cannot be computed."""
    try:
        gates = task.gates(envelope.queue, args, kwargs)
    except Exception as error:  # noqa: BLE001 - a token may be user code
        raise BadMessage("token", f"{type(error).__name__}: {error}") from None
    key, is_routed = envelope.headers.get(AFFINITY_KEY), is_inbox(envelope.queue)
    if key is None and not is_routed:
        return gates
    others = tuple(gate for gate in gates if not gate.startswith(ROUTE_PREFIX))
    if key is None or is_routed:
        return others
    if not storable_name(key):
        raise BadMessage(AFFINITY_KEY, "must have 1 to 255 characters")
    return (*others, route_gate(key))


def job_of(delivery: Delivery) -> Job:
    """Return a delivery as its task and hooks see it."""
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
    """Return the shortest of the timeout and the times for which each pool lends a member."""
    limits = (timeout, *(pool.ttl for pool in pools))
    return min((one for one in limits if one is not None), default=None)


def _retry(text: str | None, declared: Retry) -> Retry:
    if text is None:
        return declared
    try:
        return declared.with_numbers(msgspec.json.decode(text))
    except (msgspec.MsgspecError, TypeError, RecursionError) as error:
        raise BadMessage("retry", f"not a retry policy: {error}") from None


def _seconds(headers: Mapping[str, str], name: str, declared: float | None) -> float | None:
    """Return the seconds in this header, or those that the task declares."""
    if name not in headers:
        return declared
    try:
        seconds = float(headers[name])
    except ValueError:
        raise BadMessage(name, f"{headers[name]!r} is not a number of seconds") from None
    if not 0 < seconds <= _MAX_SECONDS:
        raise BadMessage(name, f"{headers[name]!r} must be above 0, at most {_MAX_SECONDS:.0f}")
    return seconds


def _track(text: str) -> Track:
    try:
        return Track(text)
    except ValueError:
        raise BadMessage("track", f"{text!r} is none of {', '.join(Track)}") from None
