"""A port as something that can be called from another process.

The port's own annotations say what travels: a call is the tuple of its arguments, an answer what
the method returns, both in MessagePack and checked against those types when they arrive.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import msgspec

from umbel import errors
from umbel.errors import BadMessage, ConfigurationError, UmbelError

_encode = msgspec.msgpack.Encoder().encode


class Question(NamedTuple):
    """A call on its way."""

    data: bytes
    wait: float | None
    """Seconds that the other end may wait before it answers; None: for ever."""


class Arguments(NamedTuple):
    """A call that has arrived."""

    args: tuple[Any, ...]
    named: dict[str, Any]
    waits: bool
    """Whether it may wait for something to happen before it is answered."""


class Method:
    """One method of a port."""

    def __init__(self, function: Callable[..., Any]) -> None:
        hints = get_type_hints(function)
        self._signature = inspect.signature(function)
        self._parameters = list(self._signature.parameters.values())[1:]  # the first is self
        takes = tuple(hints[parameter.name] for parameter in self._parameters)
        # A tuple of types, made of what the port says.
        self._takes = msgspec.msgpack.Decoder(tuple[takes] if takes else tuple[()])  # type: ignore[valid-type]
        self._gives = msgspec.msgpack.Decoder(hints.get("return", Any))
        self.answers = inspect.iscoroutinefunction(function)
        """Whether anybody waits for what it returns."""

    def question(self, *args: Any, **kwargs: Any) -> Question:
        """The arguments of a call. Raises ConfigurationError: one cannot travel."""
        bound = self._signature.bind(None, *args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        try:
            data = _encode(tuple(values[parameter.name] for parameter in self._parameters))
        except TypeError as error:
            raise ConfigurationError(
                f"{self._signature}: {error}; a connection of your own, for one, needs the"
                " database's own URL"
            ) from None
        return Question(data, _wait(values))

    def arguments(self, question: bytes) -> Arguments:
        """How to call the method. Raises BadMessage."""
        try:
            values = self._takes.decode(question)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadMessage("arguments", str(error)) from None
        named = {
            parameter.name: value
            for parameter, value in zip(self._parameters, values, strict=True)
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        every = {one.name: value for one, value in zip(self._parameters, values, strict=True)}
        waits = _wait(every) != 0
        return Arguments(tuple(values[: len(values) - len(named)]), named, waits)

    def answer(self, value: Any) -> bytes:
        """What it returned."""
        return _encode(value)

    def result(self, answer: bytes) -> Any:
        """What it returned, on the other side. Raises BadMessage."""
        try:
            return self._gives.decode(answer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadMessage("answer", str(error)) from None


def _wait(values: Mapping[str, Any]) -> float | None:
    wait: float | None = values.get("wait", values.get("timeout", 0.0))
    return wait


@cache
def methods(port: type) -> dict[str, Method]:
    """What can be called on a port: everything but what needs the caller's own connection."""
    found = {}
    for base in reversed(port.__mro__):
        for name, value in vars(base).items():
            if inspect.isfunction(value) and not name.startswith("_") and name not in _LOCAL:
                found[name] = Method(value)
    return found


_LOCAL = ("close", "publish_within")


class Problem(msgspec.Struct, frozen=True):
    """An error of ours on its way."""

    kind: str
    text: str
    fields: dict[str, Any] = {}


def problem(error: UmbelError) -> bytes:
    """An error as bytes."""
    fields = {name: value for name, value in vars(error).items() if isinstance(value, str | bool)}
    return _encode(Problem(type(error).__name__, str(error), fields))


def raised(data: bytes) -> UmbelError:
    """The error to raise here."""
    try:
        found = msgspec.msgpack.decode(data, type=Problem)
    except msgspec.MsgspecError as error:
        return UmbelError(f"an answer that cannot be read: {error}")
    kind = getattr(errors, found.kind, UmbelError)
    if not (isinstance(kind, type) and issubclass(kind, UmbelError)):
        kind = UmbelError
    made: UmbelError = kind.__new__(kind)
    made.args = (found.text,)
    vars(made).update(found.fields)
    return made
