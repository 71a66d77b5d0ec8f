"""Conditions of nodes as data: a message carries them, and a worker evaluates them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from umbel.errors import BadMessage, ConfigurationError
from umbel.tasks.composing import Composable, ResultOf
from umbel.tasks.conditions import COMPARISONS, Condition, Placeholder

_MAX_DEPTH = 50
WHEN = "when"
"""The first of the keys of results that a condition compares."""


def encode_condition(
    condition: Condition, operands: list[tuple[tuple[str | int, ...], Any]], depth: int = 0
) -> list[Any]:
    """Return a condition as a list. The results that it compares are added to ``operands``."""
    if depth > _MAX_DEPTH:
        raise ConfigurationError(
            f"when: more than {_MAX_DEPTH} conditions in one another; let a task decide"
        )
    encoded: list[Any] = [condition.operator]
    for one in condition.operands:
        if isinstance(one, Condition):
            encoded.append(encode_condition(one, operands, depth + 1))
        elif isinstance(one, ResultOf | Composable):
            operands.append(((WHEN, len(operands)), one))
            encoded.append({"input": len(operands) - 1})
        elif isinstance(one, Placeholder):
            encoded.append({"parameter": repr(one)})
        else:
            encoded.append({"value": one})
    return encoded


def holds(condition: Any, inputs: Mapping[Any, Any]) -> bool:
    """Return whether an encoded condition holds.

    Raises:
        BadMessage: it cannot be read. TypeError: the values cannot be compared.
    """
    if not isinstance(condition, list) or not condition:
        raise BadMessage("node", "its condition cannot be read")
    name, *operands = condition
    if name in ("and", "or"):
        each: Callable[..., bool] = all if name == "and" else any
        return each(holds(one, inputs) for one in operands)
    if name == "not":
        return not holds(operands[0], inputs)
    compare = COMPARISONS.get(name)
    if compare is None or len(operands) != 2:
        raise BadMessage("node", f"its condition has an unknown operator {name!r:.20}")
    left, right = (_value(one, inputs) for one in operands)
    return bool(compare(left, right))


def _value(operand: Any, inputs: Mapping[Any, Any]) -> Any:
    if isinstance(operand, dict) and "input" in operand:
        return inputs[operand["input"]]
    if isinstance(operand, dict) and "value" in operand:
        return operand["value"]
    raise BadMessage("node", "its condition has an operand that cannot be read")
