"""From a call to an envelope: options merged, body encoded, trace carried on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from umbel.clock import Clock
from umbel.errors import ConfigurationError
from umbel.keys import KeyFile, seal
from umbel.keys.keyring import moment
from umbel.messages import (
    ONLY_IF_ROUTED,
    ROUTE,
    BodyCodec,
    Command,
    Envelope,
    fresh_ids,
    inbox,
    is_inbox,
    random_hex,
    route_gate,
)
from umbel.tasks import AS_DECLARED, CallOptions, Signature, StepPlace, TaskOptions, running

_ANYWHERE = (None, None, False)


class Builder:
    """Makes envelopes for one namespace."""

    def __init__(
        self, codec: BodyCodec, namespace: str, clock: Clock, keys: KeyFile | None = None
    ) -> None:
        self._keys = keys
        self._codec = codec
        self._namespace = namespace
        self._clock = clock

    def build(
        self, signatures: Sequence[Signature[Any]], place: StepPlace | None = None
    ) -> list[Envelope]:
        """The messages of some calls; those of a step have ids that are its own.

        Raises:
            NotEncodable, MessageTooLarge: the arguments have no wire form, or too much of it.
            ConfigurationError: an option of a call is wrong.
        """
        now, count = self._clock.now(), len(signatures)
        ids = fresh_ids(count) if place is None else [place.next_id() for _ in range(count)]
        parts = zip(signatures, ids, _traceparents(count), strict=True)
        built = [self._build(signature, new, trace) for signature, new, trace in parts]
        if self._keys is not None:
            return [self._sealed(one, now) if is_inbox(one.queue) else one for one in built]
        return built

    def _sealed(self, envelope: Envelope, now: float) -> Envelope:
        """What goes to one worker alone is signed. Raises ConfigurationError: there is no key."""
        assert self._keys is not None
        key = self._keys.ring.signer(moment(now))
        if key is None:
            raise ConfigurationError(
                f"keys={str(self._keys.path)!r}: none of them can sign for {envelope.queue}; a file"
                " with a private key is needed here: umbel keys list"
            )
        return seal(envelope, key, now)

    def _build(self, signature: Signature[Any], new_id: str, traceparent: str) -> Envelope:
        task, options = signature.task, signature.options
        declared = task.declared
        unique = signature.unique()
        expires = declared.expires if options.expires is None else options.expires
        queue = inbox(int(options.worker)) if options.worker is not None else options.queue
        command = Command(task.name, signature.args, signature.kwargs)
        return Envelope(
            id=new_id if options.id is None else _checked_id(options.id),
            subject=command.task,
            body=self._codec.encode(command.data, what=f"arguments of {task.name}"),
            namespace=self._namespace,
            queue=queue or declared.queue,
            kind="io" if _is_announced(signature) else task.kind,
            priority=declared.priority if options.priority is None else options.priority,
            not_before=None if options.not_before is None else _moment(options.not_before),
            expires=_moment(expires) if isinstance(expires, datetime) else None,
            delay=_delay(options, declared),
            expires_in=None if isinstance(expires, datetime) else expires,
            max_deaths=declared.max_deaths,
            unique=unique.key if unique else None,
            on_conflict=unique.on_conflict if unique else "raise",
            traceparent=traceparent,
            gates=_gates(signature, queue or declared.queue),
            headers=_headers(options, declared),
        )


def _gates(signature: Signature[Any], queue: str) -> tuple[str, ...]:
    """What it has to pass. A token that cannot be told here buries the job where it would run."""
    if _is_announced(signature):
        return ()  # its parts have
    try:
        gates = signature.task.gates(queue, signature.args, signature.kwargs)
    except Exception:  # noqa: BLE001 - a function of the user's
        return ()
    options = signature.options
    if options is AS_DECLARED or (options.worker, options.affinity, options.stay) == _ANYWHERE:
        return gates
    others = tuple(gate for gate in gates if not gate.startswith(ROUTE))
    if options.worker is not None:
        return others
    key = options.affinity if options.affinity is not None else _key_of_the_job()
    return (*others, route_gate(key))


def _is_announced(signature: Signature[Any]) -> bool:
    """Whether it only has others run the task."""
    return bool(signature.task.declared.broadcast) and signature.options.worker is None


def _key_of_the_job() -> str:
    """By which key the running job came to its worker."""
    run = running.get()
    if run is None or run.route is None:
        raise ConfigurationError(
            "stay=True: no job runs here that has a key; give affinity=... instead"
        )
    return run.route.key


def _checked_id(given: str) -> str:
    bare = given.replace("-", "").lower()
    if len(bare) != 32 or any(letter not in "0123456789abcdef" for letter in bare):
        raise ConfigurationError(f"id={given!r}: give a UUID")
    return f"{bare[:8]}-{bare[8:12]}-{bare[12:16]}-{bare[16:20]}-{bare[20:]}"


def _delay(options: CallOptions, declared: TaskOptions) -> float | None:
    """Seconds, which the store counts: this machine's clock may be wrong."""
    if options.not_before is not None:
        return None
    delay = declared.delay if options.delay is None else options.delay
    return delay or None


def _moment(when: datetime) -> float:
    """A naive datetime means UTC: the same job must not mean two times on two machines."""
    return when.replace(tzinfo=when.tzinfo or UTC).timestamp()


def _headers(options: CallOptions, declared: TaskOptions) -> dict[str, str]:
    """What a call says differently and the worker has to know."""
    headers = {ONLY_IF_ROUTED: "yes"} if declared.only_if_routed else {}
    if options is AS_DECLARED:
        return headers
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
