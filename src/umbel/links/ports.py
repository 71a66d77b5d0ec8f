"""Encode and decode calls of a port's methods.

The port's annotations define the format: a call is the tuple of its arguments, an answer is the
method's result. Both are MessagePack, and are checked against the annotations when they arrive.
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
_NOT_CALLABLE_REMOTELY = ("close", "publish_blocking", "publish_within", "add_within")
"""Methods that belong to the caller's own connection."""


class CallRequest(NamedTuple):
    """An encoded call."""

    data: bytes
    wait: float | None
    """Seconds that the server may wait before it answers; None for no limit."""


class CallArguments(NamedTuple):
    """The arguments of a received call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    may_wait: bool
    """Whether the method may wait for something to happen before it returns."""


class Method:
    """One method of a port."""

    def __init__(self, function: Callable[..., Any]) -> None:
        hints = get_type_hints(function)
        self._signature = inspect.signature(function)
        self._parameters = list(self._signature.parameters.values())[1:]  # the first is self
        types = tuple(hints[parameter.name] for parameter in self._parameters)
        # The tuple type is built from the port's annotations at run time.
        self._arguments = msgspec.msgpack.Decoder(tuple[types] if types else tuple[()])  # type: ignore[valid-type]
        self._result = msgspec.msgpack.Decoder(hints.get("return", Any))
        self.has_result = inspect.iscoroutinefunction(function)
        """Whether the caller waits for the result."""

    def encode_call(self, *args: Any, **kwargs: Any) -> CallRequest:
        """Return an encoded call. Raises ConfigurationError if an argument cannot be sent."""
        bound = self._signature.bind(None, *args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        try:
            data = _encode(tuple(values[parameter.name] for parameter in self._parameters))
        except TypeError as error:
            raise ConfigurationError(
                f"{self._signature}: {error}; to pass a database connection of your own, use the"
                " database's own URL, not a link"
            ) from None
        return CallRequest(data, _wait_of(values))

    def decode_call(self, data: bytes) -> CallArguments:
        """Return the arguments of a call. Raises BadMessage."""
        try:
            values = self._arguments.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadMessage("arguments", str(error)) from None
        kwargs = {
            parameter.name: value
            for parameter, value in zip(self._parameters, values, strict=True)
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        by_name = {one.name: value for one, value in zip(self._parameters, values, strict=True)}
        may_wait = _wait_of(by_name) != 0
        return CallArguments(tuple(values[: len(values) - len(kwargs)]), kwargs, may_wait)

    def encode_result(self, value: Any) -> bytes:
        """Return an encoded result."""
        return _encode(value)

    def decode_result(self, data: bytes) -> Any:
        """Return the result of a call. Raises BadMessage."""
        try:
            return self._result.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadMessage("answer", str(error)) from None


def _wait_of(values: Mapping[str, Any]) -> float | None:
    wait: float | None = values.get("wait", values.get("timeout", 0.0))
    return wait


@cache
def port_methods(port: type) -> dict[str, Method]:
    """Return the methods of a port that another process can call."""
    found = {}
    for base in reversed(port.__mro__):
        for name, value in vars(base).items():
            if (
                inspect.isfunction(value)
                and not name.startswith("_")
                and name not in _NOT_CALLABLE_REMOTELY
            ):
                found[name] = Method(value)
    return found


class EncodedError(msgspec.Struct, frozen=True):
    """An error as it is sent: its class name, its text and its text and boolean attributes."""

    kind: str
    text: str
    fields: dict[str, Any] = {}


def encode_error(error: UmbelError) -> bytes:
    """Return an encoded error."""
    fields = {name: value for name, value in vars(error).items() if isinstance(value, str | bool)}
    return _encode(EncodedError(type(error).__name__, str(error), fields))


def decode_error(data: bytes) -> UmbelError:
    """Return the error to raise. An unknown class becomes a plain ``UmbelError``."""
    try:
        encoded = msgspec.msgpack.decode(data, type=EncodedError)
    except msgspec.MsgspecError as error:
        return UmbelError(f"the answer cannot be decoded: {error}")
    kind = getattr(errors, encoded.kind, UmbelError)
    if not (isinstance(kind, type) and issubclass(kind, UmbelError)):
        kind = UmbelError
    made: UmbelError = kind.__new__(kind)
    made.args = (encoded.text,)
    vars(made).update(encoded.fields)
    return made
