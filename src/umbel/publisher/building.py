"""From a call to an envelope: options merged, body encoded, trace carried on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from umbel.clock import Clock
from umbel.errors import ConfigurationError
from umbel.messages import BodyCodec, Command, Envelope, fresh_ids, random_hex
from umbel.tasks import AS_DECLARED, CallOptions, Signature, TaskOptions, running


class Builder:
    """Makes envelopes for one namespace."""

    def __init__(self, codec: BodyCodec, namespace: str, clock: Clock) -> None:
        self._codec = codec
        self._namespace = namespace
        self._clock = clock

    def build(self, signatures: Sequence[Signature[Any]]) -> list[Envelope]:
        """The messages of some calls.

        Raises:
            NotEncodable, MessageTooLarge: the arguments have no wire form, or too much of it.
            ConfigurationError: an option of a call is wrong.
        """
        now, count = self._clock.now(), len(signatures)
        parts = zip(signatures, fresh_ids(count), _traceparents(count), strict=True)
        return [self._build(signature, now, new, trace) for signature, new, trace in parts]

    def _build(
        self, signature: Signature[Any], now: float, new_id: str, traceparent: str
    ) -> Envelope:
        task, options = signature.task, signature.options
        declared = task.declared
        unique = signature.unique()
        command = Command(task.name, signature.args, signature.kwargs)
        return Envelope(
            id=new_id if options.id is None else _checked_id(options.id),
            subject=command.task,
            body=self._codec.encode(command.data, what=f"arguments of {task.name}"),
            namespace=self._namespace,
            queue=options.queue or declared.queue,
            kind=task.kind,
            priority=declared.priority if options.priority is None else options.priority,
            created=now,
            not_before=_not_before(options, declared, now),
            expires=_expires(options, declared, now),
            max_deaths=declared.max_deaths,
            unique=unique.key if unique else None,
            on_conflict=unique.on_conflict if unique else "raise",
            traceparent=traceparent,
            headers=_headers(options) if options is not AS_DECLARED else {},
        )


def _checked_id(given: str) -> str:
    bare = given.replace("-", "").lower()
    if len(bare) != 32 or any(letter not in "0123456789abcdef" for letter in bare):
        raise ConfigurationError(f"id={given!r}: give a UUID")
    return f"{bare[:8]}-{bare[8:12]}-{bare[12:16]}-{bare[16:20]}-{bare[20:]}"


def _not_before(options: CallOptions, declared: TaskOptions, now: float) -> float | None:
    if options.not_before is not None:
        return _moment(options.not_before)
    delay = declared.delay if options.delay is None else options.delay
    return now + delay if delay else None


def _expires(options: CallOptions, declared: TaskOptions, now: float) -> float | None:
    expires = declared.expires if options.expires is None else options.expires
    if isinstance(expires, datetime):
        return _moment(expires)
    return None if expires is None else now + expires


def _moment(when: datetime) -> float:
    """A naive datetime means UTC: the same job must not mean two times on two machines."""
    return when.replace(tzinfo=when.tzinfo or UTC).timestamp()


def _headers(options: CallOptions) -> dict[str, str]:
    """What a call says differently and the worker has to know."""
    headers = {}
    if options.timeout is not None:
        headers["timeout"] = str(options.timeout)
    if options.retry is not None:
        headers["retry"] = msgspec.json.encode(options.retry.numbers()).decode()
    if options.track is not None:
        headers["track"] = options.track.value
    return headers


def _traceparents(count: int) -> list[str]:
    """W3C trace contexts: the running job's trace goes on, else new ones begin."""
    run = running.get()
    parent = run.job.traceparent if run is not None else None
    trace = parent.split("-")[1] if parent and parent.count("-") == 3 else None
    digits = random_hex(24 * count)
    return [
        f"00-{trace or digits[at : at + 32]}-{digits[at + 32 : at + 48]}-01"
        for at in range(0, 48 * count, 48)
    ]
