"""Builds the envelopes of calls: merges options, encodes bodies, continues traces."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from umbel.clock import Clock
from umbel.errors import ConfigurationError, UmbelError
from umbel.graphs.calls import merge
from umbel.graphs.compiled import CompiledNode
from umbel.keys import KeyFile, sign_envelope
from umbel.keys.keyring import to_datetime
from umbel.keys.signatures import SIGNATURE_HEADER
from umbel.messages import (
    AFFINITY_KEY,
    GRAPH_TASK,
    GROUP_HEADER,
    NODE_HEADER,
    NOMINAL_TIME,
    ONLY_IF_ROUTED,
    ROUTE_PREFIX,
    SCHEDULE,
    BodyCodec,
    Command,
    Envelope,
    Input,
    derived_id,
    fresh_ids,
    inbox,
    is_inbox,
    random_hex,
    route_gate,
)
from umbel.messages.columns import MALFORMED
from umbel.messages.documents import CORRELATION, REPLY_TO
from umbel.messages.wire import DEFINED_ATTRIBUTES
from umbel.tasks import AS_DECLARED, CallOptions, Signature, StepPosition, TaskOptions, running
from umbel.tasks.hooks import Hooks, OutgoingJob

_NOT_ROUTED = (None, None, False)
"""The values of ``worker``, ``affinity`` and ``stay`` of a call that sets none of them."""


_MAX_NODE_CHARACTERS = 8_000
_MAX_DEATHS_OF_GRAPHS = 100
"""Nodes without a task run no code of users, so the death of their worker is not their fault."""

_RESERVED_HEADERS = DEFINED_ATTRIBUTES | {
    *("timeout", "retry", "keep", "track", ONLY_IF_ROUTED, GROUP_HEADER, NODE_HEADER, MALFORMED),
    *(SCHEDULE, NOMINAL_TIME, REPLY_TO, CORRELATION, SIGNATURE_HEADER, AFFINITY_KEY),
}
"""Names that hooks cannot use for headers of their own."""


class Builder:
    """Builds envelopes for one namespace."""

    def __init__(
        self,
        codec: BodyCodec,
        namespace: str,
        clock: Clock,
        keys: KeyFile | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self._keys = keys
        self._hooks = hooks
        self._codec = codec
        self._namespace = namespace
        self._clock = clock

    def build(
        self, signatures: Sequence[Signature[Any]], place: StepPosition | None = None
    ) -> list[Envelope]:
        """Return the envelopes of calls. Calls inside a step get ids that a repetition gets again.

        Raises:
            NotEncodable, MessageTooLarge: the arguments cannot be encoded, or are too large.
            ConfigurationError: an option of a call is wrong.
        """
        now, count = self._clock.now(), len(signatures)
        ids = fresh_ids(count) if place is None else [place.next_id() for _ in range(count)]
        parts = zip(signatures, ids, _traceparents(count), strict=True)
        built = [self._build(signature, new, trace) for signature, new, trace in parts]
        inboxes = [] if self._keys is None else [is_inbox(one.queue) for one in built]
        if self._keys is None or not any(inboxes) or not self._keys.open():
            return built
        return [
            self._sign(one, now) if to_inbox else one
            for one, to_inbox in zip(built, inboxes, strict=True)
        ]

    def build_nodes(
        self, nodes: Sequence[CompiledNode], group: str, queue: str
    ) -> dict[CompiledNode, Envelope]:
        """Return the envelopes of nodes. Those that run no task go to this queue.

        Raises:
            NotEncodable, MessageTooLarge, ConfigurationError: the text names the node.
        """
        now = self._clock.now()
        (parent,) = _traceparents(1)
        trace = parent.split("-")[1]
        signs = self._keys is not None
        built: dict[CompiledNode, Envelope] = {}
        for node in nodes:
            traceparent = f"00-{trace}-{random_hex(8)}-01"
            try:
                one = self._build_node(node, queue, traceparent)
            except UmbelError as error:
                error.add_note(f"In node {node.path or '0'} of the canvas.")
                raise
            headers = {**one.headers, GROUP_HEADER: group, NODE_HEADER: node.spec().encode()}
            if len(headers[NODE_HEADER]) > _MAX_NODE_CHARACTERS:
                raise ConfigurationError(
                    f"node {node.path or '0'}: it reads {len(node.inputs)} results; put them into a"
                    " group and pass its result"
                )
            one = replace(one, headers=headers)
            if signs and is_inbox(one.queue) and self._keys is not None and self._keys.open():
                one = self._sign(one, now)
            built[node] = one
        return built

    def _build_node(self, node: CompiledNode, queue: str, traceparent: str) -> Envelope:
        call = node.call
        if call is None:
            return Envelope(
                id=node.id,
                subject=GRAPH_TASK if node.kind == "graph" else f"umbel.{node.kind}",
                body=self._codec.encode(self._arguments_of(node, queue), what=node.path),
                namespace=self._namespace,
                queue=node.defaults.queue or queue,
                kind="io",
                priority=node.defaults.priority or 0,
                delay=node.defaults.delay,
                not_before=_not_before(node.defaults),
                max_deaths=_MAX_DEATHS_OF_GRAPHS,
                traceparent=traceparent,
            )
        options = merge(call.call_options, node.defaults)
        if isinstance(options.worker, str):
            raise ConfigurationError(
                f"node {node.path or '0'}, worker={options.worker!r}: give the index of the worker"
                " in a canvas; umbel workers shows it"
            )
        merged = Signature(call.task, call.args, call.kwargs, options)
        is_open = bool(node.inputs) or node.kind in ("map", "chunk")
        if is_open and options.unique is None and callable(call.task.declared.unique):
            raise ConfigurationError(
                f"unique of {call.task.name}: it depends on arguments that are results; give"
                " options(unique=...)"
            )
        return self._build(merged, node.id, traceparent, is_open=is_open)

    def _arguments_of(self, node: CompiledNode, queue: str) -> dict[str, Any]:
        """Return the arguments of a node that runs no task."""
        arguments = [*node.arguments]
        for one, undo, after in node.undos:
            made = CompiledNode(derived_id(node.id, 0, len(arguments)), f"{one.path}.undo")
            args = undo.args if undo.immutable else (None, *undo.args)
            made.call = msgspec.structs.replace(undo, args=args)
            gets_result = not undo.immutable
            if gets_result:
                made.inputs = [Input(("args", 0), "undone", 0, 0)]
            envelope = self._build_node(made, queue, _traceparents(1)[0])
            arguments.append(
                {
                    "job": one.id,
                    "path": made.path,
                    "after": after,
                    "gets_result": gets_result,
                    "envelope": msgspec.to_builtins(envelope),
                }
            )
        return {"args": arguments, "kwargs": {}}

    def _sign(self, envelope: Envelope, now: float) -> Envelope:
        """Sign a message to a worker's inbox. Raises ConfigurationError if no key can sign."""
        assert self._keys is not None
        key = self._keys.ring.signer(to_datetime(now))
        if key is None:
            raise ConfigurationError(
                f"keys={str(self._keys.path)!r}: none of them can sign for {envelope.queue}; a file"
                " with a private key is needed here: umbel keys list"
            )
        return sign_envelope(envelope, key, now)

    def _build(
        self, signature: Signature[Any], new_id: str, traceparent: str, *, is_open: bool = False
    ) -> Envelope:
        """Return the envelope of a call. With ``is_open``, some arguments are not known yet."""
        task, options = signature.task, signature.call_options
        declared = task.declared
        unique = signature.unique()
        expires = declared.expires if options.expires is None else options.expires
        queue = inbox(int(options.worker)) if options.worker is not None else options.queue
        command = Command(task.name, signature.args, signature.kwargs)
        job = new_id if options.id is None else normalize_id(options.id)
        if signature.is_open:
            task.parameters.check(signature.args, signature.kwargs)
        # Encoded before hooks see the arguments: they cannot change the message.
        body = self._codec.encode(command.data, what=f"arguments of {task.name}")
        headers = _headers(options, declared)
        if self._hooks is not None and self._hooks.publishes:
            outgoing = OutgoingJob(
                id=job,
                task=task.name,
                queue=queue or declared.queue,
                args=signature.args,
                kwargs=signature.kwargs,
            )
            headers |= self._hooks.headers(outgoing, _RESERVED_HEADERS)
        return Envelope(
            id=job,
            subject=command.task,
            body=body,
            namespace=self._namespace,
            queue=queue or declared.queue,
            kind="io" if _is_broadcast(signature) else task.kind,
            priority=declared.priority if options.priority is None else options.priority,
            not_before=_not_before(options),
            expires=_timestamp(expires) if isinstance(expires, datetime) else None,
            delay=_delay(options, declared),
            expires_in=None if isinstance(expires, datetime) else expires,
            max_deaths=declared.max_deaths,
            unique=unique.key if unique else None,
            on_conflict=unique.on_conflict if unique else "raise",
            traceparent=traceparent,
            gates=_gates(signature, queue or declared.queue, is_open=is_open),
            headers=headers,
        )


def _not_before(options: CallOptions) -> float | None:
    return None if options.not_before is None else _timestamp(options.not_before)


def _gates(signature: Signature[Any], queue: str, *, is_open: bool = False) -> tuple[str, ...]:
    """Return the gates of a call.

    If the user's function for a token fails here, return none: the worker will bury the job. If
    some arguments are not known yet, a token cannot be computed: the worker adds the gates.
    """
    if _is_broadcast(signature):
        return ()  # its parts have gates
    if is_open and signature.task.has_tokens(queue) and signature.call_options.affinity is None:
        return ()
    try:
        gates = signature.task.gates(queue, signature.args, signature.kwargs)
    except Exception:  # noqa: BLE001 - raised by the user's function
        return ()
    options = signature.call_options
    if options is AS_DECLARED or (options.worker, options.affinity, options.stay) == _NOT_ROUTED:
        return gates
    others = tuple(gate for gate in gates if not gate.startswith(ROUTE_PREFIX))
    if options.worker is not None:
        return others
    key = options.affinity if options.affinity is not None else _running_route_key()
    return (*others, route_gate(key))


def _is_broadcast(signature: Signature[Any]) -> bool:
    """Return whether the call is a broadcast itself, not its part for one worker."""
    return bool(signature.task.declared.broadcast) and signature.call_options.worker is None


def _running_route_key() -> str:
    """Return the affinity key of the running job. Raises ConfigurationError if it has none."""
    run = running.get()
    if run is None or run.route is None:
        raise ConfigurationError(
            "stay=True: no job runs here that has a key; give affinity=... instead"
        )
    return run.route.key


def normalize_id(given: str) -> str:
    """Return the id of a job as stores write it. Raise ConfigurationError."""
    bare = given.replace("-", "").lower()
    if len(bare) != 32 or any(letter not in "0123456789abcdef" for letter in bare):
        raise ConfigurationError(f"id={given!r}: give a UUID")
    return f"{bare[:8]}-{bare[8:12]}-{bare[12:16]}-{bare[16:20]}-{bare[20:]}"


def _delay(options: CallOptions, declared: TaskOptions) -> float | None:
    """Return the delay in seconds. The store measures it, as this machine's clock may be wrong."""
    if options.not_before is not None:
        return None
    delay = declared.delay if options.delay is None else options.delay
    return delay or None


def _timestamp(when: datetime) -> float:
    """Return a timestamp. A naive datetime means UTC, so it is the same time on all machines."""
    return when.replace(tzinfo=when.tzinfo or UTC).timestamp()


def _headers(options: CallOptions, declared: TaskOptions) -> dict[str, str]:
    """Return the headers with options of the call that its worker needs."""
    headers = {ONLY_IF_ROUTED: "yes"} if declared.only_if_routed else {}
    if options is AS_DECLARED:
        return headers
    if options.timeout is not None:
        headers["timeout"] = str(options.timeout)
    if options.retry is not None:
        headers["retry"] = msgspec.json.encode(options.retry.numbers()).decode()
    if options.keep is not None:
        headers["keep"] = str(options.keep)
    if options.track is not None:
        headers["track"] = options.track.value
    return headers


def _traceparents(count: int) -> list[str]:
    """Return W3C trace contexts that continue the running job's trace, or begin new ones."""
    run = running.get()
    parent = run.job.traceparent if run is not None else None
    trace = parent.split("-")[1] if parent and parent.count("-") == 3 else None
    digits = random_hex(24 * count)
    return [
        f"00-{trace or digits[at : at + 32]}-{digits[at + 32 : at + 48]}-01"
        for at in range(0, 48 * count, 48)
    ]
