"""Placeholders of workflows, and conditions on them, which can be stored, drawn and checked."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Literal, NoReturn

from umbel.errors import ConfigurationError

Operator = Literal["==", "!=", "<", "<=", ">", ">=", "and", "or", "not"]
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Condition:
    """A comparison of placeholders and results, or several joined by ``&``, ``|`` and ``~``."""

    __slots__ = ("operands", "operator")

    def __init__(self, operator: Operator, *operands: Any) -> None:
        self.operator = operator
        self.operands = operands

    def __and__(self, other: Any) -> Condition:
        return Condition("and", self, _as_condition(other))

    def __or__(self, other: Any) -> Condition:
        return Condition("or", self, _as_condition(other))

    def __invert__(self) -> Condition:
        return Condition("not", self)

    def __bool__(self) -> NoReturn:
        raise ConfigurationError(
            f"{self!r} has no value yet: use it in task.s(...).when(condition), and join conditions"
            " with & and | instead of and, or"
        )

    def __repr__(self) -> str:
        if self.operator == "not":
            return f"not ({self.operands[0]!r})"
        return f" {self.operator} ".join(
            f"({one!r})" if isinstance(one, Condition) else repr(one) for one in self.operands
        )


class _HasNoAttributes(ConfigurationError, AttributeError):
    """An attribute of a value that is not known yet was read. ``hasattr`` is still False."""


class Symbol:
    """Stands for a value that is not known yet. It can be compared, and be an argument."""

    __slots__ = ()
    stands_for_result = True

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return Condition("==", self, other)

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return Condition("!=", self, other)

    def __lt__(self, other: Any) -> Condition:
        return Condition("<", self, other)

    def __le__(self, other: Any) -> Condition:
        return Condition("<=", self, other)

    def __gt__(self, other: Any) -> Condition:
        return Condition(">", self, other)

    def __ge__(self, other: Any) -> Condition:
        return Condition(">=", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        self._refuse("if", "task.s(...).when(condition)")

    def __iter__(self) -> NoReturn:
        self._refuse("for", "task.map(values), which runs a task for each item")

    def __len__(self) -> NoReturn:
        self._refuse("len()", "a task that returns the length")

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("a call", "a task that calls it")

    def __str__(self) -> NoReturn:
        self._refuse("a text", "a task that makes the text")

    def __getattr__(self, name: str) -> NoReturn:
        raise _HasNoAttributes(
            f"{self!r} has no value when the workflow is declared, so .{name} cannot be read; use"
            f" [{name!r}] for an item, or a task that returns it"
        )

    def _calculate(self, *others: Any) -> NoReturn:
        self._refuse("arithmetic", "a task that calculates it")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _calculate
    __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = _calculate
    __neg__ = __pos__ = __abs__ = __int__ = __float__ = __index__ = _calculate

    def __format__(self, spec: str) -> NoReturn:
        self._refuse("a text", "a task that makes the text")

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        raise ConfigurationError(
            f"{self!r} has no value when the workflow is declared, so {what} cannot use it; use"
            f" {remedy}"
        )


class Placeholder(Symbol):
    """A parameter of a workflow, while the workflow is declared."""

    __slots__ = ("annotation", "name", "pick")

    def __init__(self, name: str, annotation: Any, pick: tuple[str | int, ...] = ()) -> None:
        self.name = name
        self.annotation = annotation
        self.pick = pick

    def __getitem__(self, key: str | int) -> Placeholder:
        """Stands for an item of the value: ``order["total"]``."""
        return Placeholder(self.name, Any, (*self.pick, check_key(key)))

    def __repr__(self) -> str:
        return f"parameter {self.name}" + "".join(f"[{key!r}]" for key in self.pick)


def check_key(key: object) -> str | int:
    """Return the key of an item. Raise ConfigurationError if it is neither text nor a number."""
    if type(key) in (str, int):
        return key  # type: ignore[return-value]
    raise ConfigurationError(
        f"[{key!r:.80}] of a value that is not known yet: give a name or index"
    )


def pick_item(value: Any, pick: tuple[str | int, ...]) -> Any:
    """Return an item of a value. Raise LookupError or TypeError if there is none."""
    for key in pick:
        value = value[key]
    return value


def _as_condition(value: Any) -> Condition:
    if isinstance(value, Condition):
        return value
    raise ConfigurationError(
        f"{value!r:.80} is not a condition: use parentheses, as in (a > 1) & (b < 2)"
    )
