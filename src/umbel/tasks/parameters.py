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
        self._hints = {p.name: hints.get(p.name, Any) for p in parameters}
        rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")
        extra = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "")
        self._rest = (rest, self._hints.pop(rest, Any))
        self._extra = self._hints.pop(extra, Any)
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
                    raise self._wrong_type(name, hint, args[number])
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            reason = self._unknown_keyword(kwargs) or error
            raise BadArguments(f"{self.task}{self.signature}: {reason}") from None
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

    def _check_type(self, name: str, hint: Any, value: Any) -> None:
        """Refuse a value of another plain type. Other annotations are checked when the job runs."""
        if _is_plain(hint) and not isinstance(value, _PLAIN[hint]):
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
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            reason = self._unknown_keyword(kwargs) or error
            raise BadMessage(
                "data", f"does not fit {self.task}{self.signature}: {reason}"
            ) from None
        typed = [_convert(*one) for one in self._with_hints(args, {})]
        return typed, {one[0]: _convert(*one) for one in self._with_hints((), kwargs)}

    def _fits(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Return True if the number of arguments surely fits; False proves nothing."""
        return self._simple and not kwargs and self._required <= len(args) <= len(self._positional)

    def _unknown_keyword(self, kwargs: dict[str, Any]) -> str:
        """Return what is wrong with the first keyword that no parameter takes, or an empty text.

        ``bind`` reports a missing argument first, which a misspelled keyword is often meant for.
        """
        parameters = self.signature.parameters.values()
        named = [p.name for p in parameters if p.kind in _KEYWORD]
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        unknown = [] if takes_all else [name for name in kwargs if name not in named]
        if not unknown:
            return ""
        shown = f"{unknown[0]!r:.80}"
        return f"there is no parameter {shown}; the parameters are {', '.join(named) or 'none'}"

    def _with_hints(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> list[tuple[str, Any, Any]]:
        """Return each argument's name, annotation and value."""
        found = [
            (p.name, self._hints[p.name], value)
            for p, value in zip(self._positional, args, strict=False)
        ]
        found += [(*self._rest, value) for value in args[len(self._positional) :]]
        found += [(name, self._hints.get(name, self._extra), v) for name, v in kwargs.items()]
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
