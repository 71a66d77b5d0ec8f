"""From a delivery to something that can run, or to the outcome that says why it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from umbel.errors import BadMessage, UmbelError, UnknownTask
from umbel.messages import BodyCodec, Delivery, Expired, MessageType, Outcome, Rejected
from umbel.messages.columns import MALFORMED
from umbel.tasks import Job, Registry, Retry, Run, Task, Track


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


class Activator:
    """Resolves the task, decodes the arguments, applies what the call said differently."""

    def __init__(
        self,
        registry: Registry,
        codec: BodyCodec,
        on_progress: Callable[[Delivery, float, float | None], None],
    ) -> None:
        self._registry = registry
        self._codec = codec
        self._on_progress = on_progress

    def activate(self, delivery: Delivery, now: float) -> Activation | Outcome:
        """Something to run, or the outcome of a message that never can."""
        if delivery.envelope.type is not MessageType.COMMAND:
            return Rejected(f"type: only {MessageType.COMMAND} can run, this is another message")
        malformed = delivery.envelope.headers.get(MALFORMED)
        if malformed is not None:
            return Rejected(malformed)
        expires = delivery.envelope.expires
        if expires is not None and expires <= now:
            return Expired()
        try:
            return self._prepare(delivery)
        except (UnknownTask, BadMessage) as error:
            return Rejected(str(error))
        except UmbelError as error:
            return Rejected(f"headers: {error}")

    def _prepare(self, delivery: Delivery) -> Activation:
        envelope = delivery.envelope
        task = self._registry.find(envelope.subject)
        args, kwargs = task.parameters.decode(self._codec.decode(envelope.body))
        declared, headers = task.declared, envelope.headers
        return Activation(
            delivery=delivery,
            task=task,
            args=args,
            kwargs=kwargs,
            run=Run(_job(delivery), delivery.lease, self._progress_of(delivery)),
            retry=_retry(headers.get("retry"), declared.retry),
            timeout=_timeout(headers["timeout"]) if "timeout" in headers else declared.timeout,
            track=_track(headers["track"]) if "track" in headers else declared.track,
        )

    def _progress_of(self, delivery: Delivery) -> Callable[[float, float | None], None]:
        return lambda done, of: self._on_progress(delivery, done, of)


def _job(delivery: Delivery) -> Job:
    envelope = delivery.envelope
    return Job(
        id=envelope.id,
        task=envelope.subject,
        queue=envelope.queue,
        attempt=delivery.attempt,
        deaths=delivery.deaths,
        priority=envelope.priority,
        created=envelope.created,
        traceparent=envelope.traceparent,
        headers=envelope.headers,
    )


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
