"""Does a call fit a task? Checked when publishing, and again on what arrives from outside."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
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
        parameters = self.signature.parameters.values()
        self._positional = [p for p in parameters if p.kind in _POSITIONAL]
        self._required = sum(p.default is p.empty for p in self._positional)
        self._hints = {p.name: hints.get(p.name, Any) for p in parameters}
        # The short cut below is right only when nothing but plain positional parameters exist.
        self._simple = len(self._positional) == len(self.signature.parameters)
        self._rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        self._extra = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse a call that the task could not run.

        Raises:
            BadArguments: too many, too few, unknown, or plainly of the wrong type.
        """
        if not (
            self._simple and not kwargs and self._required <= len(args) <= len(self._positional)
        ):
            try:
                self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise BadArguments(f"{self.task}{self.signature}: {error}") from None
        for name, value in self._named(args, kwargs):
            plain = _PLAIN.get(self._hints.get(name))
            if plain is not None and not isinstance(value, plain):
                raise BadArguments(
                    f"{self.task}{self.signature}: {name} must be"
                    f" {self._hints[name].__name__}, not {type(value).__name__} ({value!r:.80})"
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
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise BadMessage("data", f"does not fit {self.task}{self.signature}: {error}") from None
        names = [name for name, _ in self._named(tuple(args), {})]
        typed = [self._typed(name, value) for name, value in zip(names, args, strict=True)]
        return typed, {name: self._typed(name, value) for name, value in kwargs.items()}

    def _typed(self, name: str, value: Any) -> Any:
        hint = self._hints.get(name)
        if hint is None:
            hint = self._hints.get(self._extra or "", Any)
        if hint is Any or type(value) is hint:
            return value
        return decode_as(value, hint, name)

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        named = [
            (self._positional[i].name if i < len(self._positional) else self._rest or "", value)
            for i, value in enumerate(args)
        ]
        named.extend(kwargs.items())
        return named


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Resolved annotations; one that cannot be resolved here (TYPE_CHECKING imports) is Any."""
    try:
        return typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - annotations are arbitrary expressions
        return {}
