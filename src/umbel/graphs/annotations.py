"""Whether a value of one annotation can be one of another. Unknown annotations always can.

Of two lists, the items decide, although an empty list would fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

_SHAPES: dict[Any, str] = {
    int: "int",
    float: "float",
    str: "str",
    bool: "bool",
    bytes: "bytes",
    NoneType: "None",
    list: "list",
    tuple: "list",
    set: "list",
    frozenset: "list",
    dict: "dict",
}
"""How values of a type arrive at another node."""
_CONVERTED = {("int", "float"), ("float", "int"), ("bool", "int"), ("bytes", "str")}
"""Pairs of which some values are accepted: 3.0 for an int, and the text that bytes are in JSON."""


def can_be(given: Any, wanted: Any) -> bool:
    """Return False if no value of the type ``given`` is accepted for the type ``wanted``."""
    left, right = _members(given), _members(wanted)
    return any(_one_can_be(one, other) for one in left for other in right)


def accepts_none(annotation: Any) -> bool:
    """Return False if a parameter with this annotation certainly refuses None."""
    return can_be(NoneType, annotation)


def shown_type(annotation: Any) -> str:
    """Return an annotation for an error text."""
    if annotation is NoneType:
        return "None"
    return annotation.__name__ if type(annotation) is type else str(annotation)


def _members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(one for part in get_args(annotation) for one in _members(part))
    return (annotation,)


def _one_can_be(given: Any, wanted: Any) -> bool:
    left, right = _shape(given), _shape(wanted)
    if not left or not right:
        return True
    if left != right:
        return (left, right) in _CONVERTED
    items = get_args(given), get_args(wanted)
    if get_origin(given) is list is get_origin(wanted) and all(len(one) == 1 for one in items):
        return can_be(items[0][0], items[1][0])
    return True


def _shape(annotation: Any) -> str:
    """Return how values of an annotation arrive; empty if that is not known."""
    origin = get_origin(annotation) or annotation
    return _SHAPES.get(origin, "") if isinstance(origin, type) else ""


def list_type(items: Sequence[Any]) -> Any:
    """Return the type of a list of results of these types; Any if they differ."""
    kinds = {str(one): one for one in items}
    if len(kinds) != 1 or Any in kinds.values():
        return Any
    (only,) = kinds.values()
    return list_of(only)


def list_of(returns: Any) -> Any:
    """Return the type of a list of results."""
    return Any if returns is Any else list[returns]
