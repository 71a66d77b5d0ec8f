"""Does a call fit a task? Checked when publishing, and again on what arrives from outside."""

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
            (place, name, hint, _PLAIN[hint])
            for place, (name, hint) in enumerate(self._fields)
            if _is_plain(hint)
        ]
        self._required = sum(p.default is p.empty for p in self._positional)
        self._hints = {p.name: hints.get(p.name, Any) for p in parameters}
        rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")
        extra = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "")
        self._rest = (rest, self._hints.pop(rest, Any))
        self._extra = self._hints.pop(extra, Any)
        # The short cut below is right only when nothing but plain positional parameters exist.
        self._simple = len(self._positional) == len(parameters)

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse a call that the task could not run.

        Raises:
            BadArguments: too many, too few, unknown, or plainly of the wrong type.
        """
        if self._fits(args, kwargs):
            for place, name, hint, types in self._plain:
                if place < len(args) and not isinstance(args[place], types):
                    raise self._misfit(name, hint, args[place])
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise BadArguments(f"{self.task}{self.signature}: {error}") from None
        for name, hint, value in self._with_hints(args, kwargs):
            self._check_plainly(name, hint, value)

    def argument(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The value that a call gives a parameter, or its default. Raises BadArguments."""
        try:
            bound = self.signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return bound.arguments[name]
        except (TypeError, KeyError) as error:
            raise BadArguments(
                f"{self.task}{self.signature}: no argument {name!r}: {error}"
            ) from None

    def _check_plainly(self, name: str, hint: Any, value: Any) -> None:
        """Refuse a value that is plainly of another type. Others are found out when they run."""
        if _is_plain(hint) and not isinstance(value, _PLAIN[hint]):
            raise self._misfit(name, hint, value)

    def _misfit(self, name: str, hint: Any, value: Any) -> BadArguments:
        return BadArguments(
            f"{self.task}{self.signature}: {name} must be {hint.__name__},"
            f" not {type(value).__name__} ({value!r:.80})"
        )

    def decode(self, data: Any) -> tuple[list[Any], dict[str, Any]]:
        """Arguments of the declared types from a message's plain data.

        Raises:
            BadMessage: the data is no call, or does not fit the signature; it names the argument.
        """
        if not isinstance(data, dict) or not data.keys() <= {"args", "kwargs"}:
            raise BadMessage("data", 'must be {"args": [...], "kwargs": {...}}')
        args, kwargs = data.get("args", ()), data.get("kwargs") or {}
        if not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
            raise BadMessage("data", "args must be a list and kwargs an object")
        if self._fits(args, kwargs):
            found = zip(self._fields, args, strict=False)
            return [_typed(name, hint, value) for (name, hint), value in found], {}
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise BadMessage("data", f"does not fit {self.task}{self.signature}: {error}") from None
        typed = [_typed(*one) for one in self._with_hints(args, {})]
        return typed, {one[0]: _typed(*one) for one in self._with_hints((), kwargs)}

    def _fits(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """A short cut: plainly as many as there are. False says nothing."""
        return self._simple and not kwargs and self._required <= len(args) <= len(self._positional)

    def _with_hints(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> list[tuple[str, Any, Any]]:
        """Each argument's name, annotation and value."""
        found = [
            (p.name, self._hints[p.name], value)
            for p, value in zip(self._positional, args, strict=False)
        ]
        found += [(*self._rest, value) for value in args[len(self._positional) :]]
        found += [(name, self._hints.get(name, self._extra), v) for name, v in kwargs.items()]
        return found


def returned_by(function: Callable[..., Any]) -> Any:
    """What a function says that it returns; Any when it does not, or cannot be decoded."""
    while isinstance(function, functools.partial):
        function = function.func
    found = getattr(function, "__annotations__", {})
    return _resolved(function, "return", found["return"]) if "return" in found else Any


def _is_plain(hint: Any) -> bool:
    return isinstance(hint, type) and hint in _PLAIN


def _typed(name: str, hint: Any, value: Any) -> Any:
    if hint is Any or type(value) is hint:
        return value
    return decode_as(value, hint, name)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Resolved annotations. What cannot be resolved here, or has no wire form, counts as Any."""
    found = getattr(function, "__annotations__", {})
    return {name: _resolved(function, name, hint) for name, hint in found.items()}


def _resolved(function: Callable[..., Any], name: str, hint: Any) -> Any:
    alone = SimpleNamespace(__annotations__={name: hint})
    try:
        hint = typing.get_type_hints(alone, getattr(function, "__globals__", {}))[name]
        decode_as(None, hint, name)
    except BadMessage as misfit:
        return Any if misfit.unsupported else hint
    except Exception:  # noqa: BLE001 - annotations are arbitrary expressions
        return Any
    return hint
