"""Arguments that are results of other nodes: where they are, and whether they fit."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Any

from umbel.errors import BadArguments
from umbel.graphs.annotations import can_be, shown_type
from umbel.graphs.compiled import ArgumentKeys
from umbel.tasks.composing import OPEN
from umbel.tasks.conditions import Placeholder
from umbel.tasks.task import Signature


def extract(value: Any, keys: ArgumentKeys, found: list[tuple[ArgumentKeys, Any]]) -> Any:
    """Return a value with None instead of results, which are added to ``found``.

    Results are also found in lists, tuples and dicts.
    """
    if hasattr(value, "stands_for_result"):
        found.append((keys, value))
        return None
    if type(value) is dict:
        return {key: extract(one, (*keys, key), found) for key, one in value.items()}
    if type(value) in (list, tuple):
        return [extract(one, (*keys, at), found) for at, one in enumerate(value)]
    return value


def argument_name(keys: ArgumentKeys) -> str:
    """Return the position or name of an argument, for an error text."""
    return ".".join(str(key) for key in keys[1:])


def insert(data: dict[str, Any], keys: ArgumentKeys, value: Any) -> None:
    """Put a result into the arguments. Raise BadArguments if these keys lead to nothing there."""
    target: Any = data
    try:
        for key in keys[:-1]:
            if isinstance(target[key], tuple):
                target[key] = [*target[key]]
            target = target[key]
        target[keys[-1]] = value
    except (LookupError, TypeError):
        raise BadArguments(f"node: its arguments have nothing at {keys!r:.80}") from None


def check_call(call: Signature[Any], args: tuple[Any, ...], path: str) -> None:
    """Refuse a call that the task could not run. Raise BadArguments, with the node's path."""
    try:
        call.task.parameters.check(args, call.kwargs)
    except BadArguments as error:
        gets_result = bool(args) and args[0] is OPEN
        remedy = ""
        if gets_result and len(args) > 1 + len(call.args) - 1:
            remedy = (
                "; it also gets the result of the node before it as its first argument:"
                " .si(...) instead of .s(...) leaves that out"
            )
        raise BadArguments(f"node {path or '0'}: {error}{remedy}") from None


def check_edge(
    path: str, call: Signature[Any], keys: ArgumentKeys, returns: Any, nodes: Sequence[Any]
) -> None:
    """Refuse a result whose declared type can never be that of the parameter."""
    if len(keys) != 2:
        return
    wanted = call.task.parameters.annotation(keys[1])
    if can_be(returns, wanted):
        return
    before = nodes[0].path if nodes else "before it"
    remedy = "; .si(...) instead of .s(...) leaves it out" if returns is NoneType else ""
    raise BadArguments(
        f"node {path or '0'}: argument {keys[1]} of {call.task.name} must be"
        f" {shown_type(wanted)}, and node {before} returns {shown_type(returns)}{remedy}"
    )


def check_parameter(
    path: str, call: Signature[Any], keys: ArgumentKeys, parameter: Placeholder
) -> None:
    """Refuse a parameter of a workflow whose type can never be that of the task's parameter."""
    wanted = call.task.parameters.annotation(keys[1]) if len(keys) == 2 else Any
    if can_be(parameter.annotation, wanted):
        return
    raise BadArguments(
        f"node {path or '0'}: argument {keys[1]} of {call.task.name} must be"
        f" {shown_type(wanted)}, and {parameter!r} is {shown_type(parameter.annotation)}"
    )
