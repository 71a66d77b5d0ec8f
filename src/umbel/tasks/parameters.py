"""Checks whether a call fits a task, when it is published and when it arrives at a worker."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from umbel.errors import BadArguments, BadMessage
from umbel.messages import decode_as

_PLAIN: dict[Any, tuple[type, ...]] = {
    int: (int,),
    float: (int, float),
    str: (str,),
    bool: (bool,),
    bytes: (bytes, bytearray, memoryview),
}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Parameters:
    """A task function's signature, prepared for fast checks and typed decoding."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.task = name
        self.signature = inspect.signature(function)
        hints = _hints(function)
        self.returns = hints.get("return", Any)
        parameters = list(self.signature.parameters.values())
        self._positional = [p for p in parameters if p.kind in _POSITIONAL]
        self._fields = [(p.name, hints.get(p.name, Any)) for p in self._positional]
        self._plain = [
            (number, name, hint, _PLAIN[hint])
            for number, (name, hint) in enumerate(self._fields)
            if _is_plain(hint)
        ]
        self._required = sum(p.default is p.empty for p in self._positional)
        self._keywords = {p.name: hints.get(p.name, Any) for p in parameters if p.kind in _KEYWORD}
        self._rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")
        self._extra = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "")
        self._rest_hint = hints.get(self._rest, Any)
        self._extra_hint = hints.get(self._extra, Any)
        # ``_fits`` is right only if all parameters are positional.
        self._simple = len(self._positional) == len(parameters)

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse a call that the task could not run.

        Raises:
            BadArguments: arguments are too many, too few, unknown, or of the wrong type.
        """
        if self._fits(args, kwargs):
            for number, name, hint, types in self._plain:
                if number < len(args) and not isinstance(args[number], types):
                    self._check_type(name, hint, args[number])
            return
        if reason := self._find_misfit(args, kwargs):
            raise BadArguments(f"{self.task}{self.signature}: {reason}")
        for name, hint, value in self._with_hints(args, kwargs):
            self._check_type(name, hint, value)

    def argument(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the value of a parameter in a call, or its default. Raise BadArguments."""
        try:
            bound = self.signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return bound.arguments[name]
        except (TypeError, KeyError) as error:
            raise BadArguments(
                f"{self.task}{self.signature}: no argument {name!r}: {error}"
            ) from None

    def annotation(self, place: str | int) -> Any:
        """Return the annotation of a positional or keyword parameter; Any if there is none."""
        if isinstance(place, int):
            at = self._fields[place : place + 1]
            return at[0][1] if at else self._rest_hint
        return self._keywords.get(place, self._extra_hint)

    def _check_type(self, name: str, hint: Any, value: Any) -> None:
        """Refuse a value of another plain type. Other annotations are checked when the job runs."""
        is_wrong = _is_plain(hint) and not isinstance(value, _PLAIN[hint])
        if is_wrong and not hasattr(value, "stands_for_result"):
            raise self._wrong_type(name, hint, value)

    def _wrong_type(self, name: str, hint: Any, value: Any) -> BadArguments:
        return BadArguments(
            f"{self.task}{self.signature}: {name} must be {hint.__name__},"
            f" not {type(value).__name__} ({value!r:.80})"
        )

    def decode(self, data: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a message, converted to the declared types.

        Raises:
            BadMessage: the data is not a call or does not fit the signature; it names the argument.
        """
        if not isinstance(data, dict) or not data.keys() <= {"args", "kwargs"}:
            raise BadMessage("data", 'must be {"args": [...], "kwargs": {...}}')
        args, kwargs = data.get("args", ()), data.get("kwargs") or {}
        if not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
            raise BadMessage("data", "args must be a list and kwargs an object")
        if self._fits(args, kwargs):
            found = zip(self._fields, args, strict=False)
            return [_convert(name, hint, value) for (name, hint), value in found], {}
        if reason := self._find_misfit(args, kwargs):
            raise BadMessage("data", f"does not fit {self.task}{self.signature}: {reason}")
        typed = [_convert(*one) for one in self._with_hints(args, {})]
        return typed, {one[0]: _convert(*one) for one in self._with_hints((), kwargs)}

    def _fits(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Return True if the number of arguments surely fits; False proves nothing."""
        return self._simple and not kwargs and self._required <= len(args) <= len(self._positional)

    def _find_misfit(self, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
        """Return why the function cannot be called in this way; an empty text if it can.

        ``Signature.bind`` is not used: beside ``**extra``, Python 3.11 refuses calls that are
        right and Python 3.13 accepts calls that are wrong. An unknown keyword is reported first,
        because it is often a misspelled name of a missing argument.
        """
        by_position = self._positional[: len(args)]
        unknown = [name for name in kwargs if name not in self._keywords]
        for name in unknown:
            if not self._extra:
                named = ", ".join(self._keywords) or "none"
                return f"there is no parameter {name!r:.80}; the parameters are {named}"
            if not isinstance(name, str):
                return f"the keyword {name!r:.80} is not a text"
        if len(args) > len(self._positional) and not self._rest:
            return f"too many positional arguments: {len(args)} instead of {len(self._positional)}"
        for p in by_position:
            if p.name in kwargs and p.kind in _KEYWORD:
                return f"multiple values for argument {p.name!r}"
        for p in self.signature.parameters.values():
            is_given = p in by_position or (p.name in kwargs and p.kind in _KEYWORD)
            if not is_given and p.default is p.empty and p.kind in (*_POSITIONAL, *_KEYWORD):
                return f"missing a required argument: {p.name!r}"
        return ""

    def _with_hints(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> list[tuple[str, Any, Any]]:
        """Return each argument's name, annotation and value."""
        found = [(*field, value) for field, value in zip(self._fields, args, strict=False)]
        found += [(self._rest, self._rest_hint, value) for value in args[len(self._fields) :]]
        found += [
            (name, self._keywords.get(name, self._extra_hint), value)
            for name, value in kwargs.items()
        ]
        return found


def return_type_of(function: Callable[..., Any]) -> Any:
    """Return a function's return annotation; Any if it has none or it cannot be decoded."""
    while isinstance(function, functools.partial):
        function = function.func
    found = getattr(function, "__annotations__", {})
    return _resolve(function, "return", found["return"]) if "return" in found else Any


def _is_plain(hint: Any) -> bool:
    return isinstance(hint, type) and hint in _PLAIN


def _convert(name: str, hint: Any, value: Any) -> Any:
    if hint is Any or type(value) is hint:
        return value
    return decode_as(value, hint, name)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return resolved annotations; Any for those that cannot be resolved or have no wire form."""
    found = getattr(function, "__annotations__", {})
    return {name: _resolve(function, name, hint) for name, hint in found.items()}


def _resolve(function: Callable[..., Any], name: str, hint: Any) -> Any:
    alone = SimpleNamespace(__annotations__={name: hint})
    try:
        hint = typing.get_type_hints(alone, getattr(function, "__globals__", {}))[name]
        decode_as(None, hint, name)
    except BadMessage as error:
        return Any if error.unsupported else hint
    except Exception:  # noqa: BLE001 - annotations are arbitrary expressions
        return Any
    return hint
