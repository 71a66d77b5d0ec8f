"""Options of the nodes of a canvas, and the calls of its maps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from umbel.errors import BadArguments, ConfigurationError
from umbel.graphs.arguments import extract
from umbel.graphs.compiled import NO_OPTIONS, ArgumentKeys, Chunk
from umbel.messages import Policy
from umbel.tasks.conditions import Placeholder
from umbel.tasks.options import CallOptions
from umbel.tasks.task import Signature


def refuse_whole_options(canvas: Any, path: str) -> None:
    """Refuse options of a part that only the whole canvas can have."""
    options: CallOptions = canvas.call_options
    names = (
        ["id", "connection"] if isinstance(canvas, Signature) else ["id", "connection", "unique"]
    )
    for name in names:
        if getattr(options, name) is not None:
            raise ConfigurationError(
                f"node {path}, {name}: give it to the whole canvas, not to a part of it"
            )


def merge(own: CallOptions, defaults: CallOptions) -> CallOptions:
    """Return the options of a node or inner canvas; those that it does not have are inherited."""
    if defaults == NO_OPTIONS:
        return own
    is_delayed = own.delay is not None or own.not_before is not None
    queue = defaults.queue if own.queue is None and own.worker is None else own.queue
    return replace(
        own,
        queue=queue,
        priority=defaults.priority if own.priority is None else own.priority,
        expires=defaults.expires if own.expires is None else own.expires,
        delay=own.delay if is_delayed else defaults.delay,
        not_before=own.not_before if is_delayed else defaults.not_before,
    )


def calls_of(
    call: Signature[Any], items: Sequence[Any], star: bool, size: int, errors: Policy
) -> list[Signature[Any] | Chunk]:
    """Return the calls of a map: one for each item, or chunks of several."""
    every = [_arguments(item, star) for item in items]
    if size:
        return [Chunk(call, every[at : at + size], errors) for at in range(0, len(every), size)]
    return [
        Signature(call.task, (*args, *call.args), call.kwargs, call.call_options) for args in every
    ]


def _arguments(item: Any, star: bool) -> tuple[Any, ...]:
    if star and (not isinstance(item, Iterable) or isinstance(item, str | bytes | dict)):
        raise BadArguments(f"item {item!r:.80}: give a tuple with the arguments of a call")
    return tuple(item) if star else (item,)


def refuse_results(call: Signature[Any], path: str) -> None:
    """Refuse results of other nodes in the further arguments of a map over a result."""
    found: list[tuple[ArgumentKeys, Any]] = []
    extract([*call.args, call.kwargs], (), found)
    if found:
        raise ConfigurationError(
            f"map at {path}: a further argument is the result of a node; let the node before the"
            " map return it as a part of each item, and use starmap"
        )


def refuse_unique(call: Signature[Any], path: str) -> None:
    """Refuse a map whose items would all have one unique key."""
    own, declared = call.call_options.unique, call.task.declared.unique
    if own is not None or (declared and not callable(declared)):
        raise ConfigurationError(
            f"map at {path}: all items would have the unique key of {call.task.name}; declare"
            " unique as a function of the arguments, or give the key to a canvas with the map"
        )


def refuse_worker(call: Signature[Any], path: str) -> None:
    """Refuse a map over a result whose jobs would need signatures that a worker cannot make."""
    if call.call_options.worker is not None:
        raise ConfigurationError(
            f"worker of map at {path}: not for a map over a result; give affinity=... instead, or"
            " let a task return current.replace(...) of a map over a list"
        )


def refuse_results_of_undo(undo: Signature[Any], path: str) -> None:
    """Refuse results of other nodes as arguments of an undo."""
    found: list[tuple[ArgumentKeys, Any]] = []
    extract([*undo.args, undo.kwargs], (), found)
    for _, source in found:
        if not isinstance(source, Placeholder):
            raise ConfigurationError(
                f"node {path}.undo: an undo gets the result of its node and parameters of the"
                f" workflow, not {source!r:.80}; let the node return what its undo needs"
            )


def refuse_tokens(call: Signature[Any], path: str) -> None:
    """Refuse chunks of a task whose gates depend on the arguments of single calls."""
    queue = call.call_options.queue or call.task.declared.queue
    if call.task.has_tokens(queue):
        raise ConfigurationError(
            f"chunks at {path}: {call.task.name} has a limit, rate or affinity for each value of an"
            " argument, and a chunk has many calls; use map or starmap"
        )
