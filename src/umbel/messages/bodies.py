"""Encode values to bytes, and decode them to the types that a task declares.

JSON is the default, and what other languages send. It has no NaN and no infinity: a value with one
is refused, and the error names its place. MessagePack is smaller and keeps bytes and NaN. Pickle is
only for applications that set a key: every pickle is signed, and a pickle whose signature does not
verify is never loaded.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from contextlib import suppress
from math import isfinite
from pathlib import PurePath
from types import UnionType
from typing import Any, TypeVar, get_args

import msgspec

from umbel.errors import (
    BadMessage,
    ConfigurationError,
    MessageTooLarge,
    NodeFailed,
    NotEncodable,
)

JSON = "application/json"
MESSAGEPACK = "application/msgpack"
PICKLE = "application/x-umbel-pickle"

_SIGNATURE_BYTES = 32
T = TypeVar("T")


class Body(msgspec.Struct, frozen=True):
    """Encoded data and its media type."""

    content_type: str
    data: bytes


def _to_builtin(value: Any) -> Any:
    """Return a pydantic model or a path, which msgspec does not know, as plain data."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, NodeFailed):
        return {"node": value.node, "job": value.job, "error": value.error}
    raise NotEncodable(
        f"a value of type {type(value).__module__}.{type(value).__qualname__} has no wire form;"
        " pass plain data, a dataclass, a msgspec.Struct or a pydantic model"
    )


def _from_builtin(target: type, value: Any) -> Any:
    """Build a value of the annotated type from plain data: the reverse of ``_to_builtin``."""
    if hasattr(target, "model_validate"):
        return target.model_validate(value)
    if isinstance(target, type) and issubclass(target, PurePath):
        return target(value)
    if isinstance(target, type) and isinstance(value, target):
        return value
    raise msgspec.ValidationError(f"cannot build {target!r} from a message")


_encode_json = msgspec.json.Encoder(enc_hook=_to_builtin).encode
_encode_msgpack = msgspec.msgpack.Encoder(enc_hook=_to_builtin).encode
_decode_json = msgspec.json.Decoder().decode
_decode_msgpack = msgspec.msgpack.Decoder().decode

_maybe_not_finite = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]").search
"""Finds the first bytes of NaN and the infinities in MessagePack. Other data may contain them."""
_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class NotFinite(msgspec.Struct, frozen=True):
    """A number that JSON does not have, and its place in a value."""

    place: str
    """In Python's syntax: ``args[1].price``; empty for the value itself."""
    number: str
    """``NaN``, ``Infinity`` or ``-Infinity``."""

    def within(self, name: str) -> str:
        """Return the error text for a value of this name."""
        joint = "." if name and self.place and not self.place.startswith("[") else ""
        whole = f"{name}{joint}{self.place}" or "the value"
        return f"{whole} is {self.number}: JSON cannot carry it"


def not_finite(value: Any) -> NotFinite | None:
    """Return the first NaN or infinity in a value; None if there is none.

    msgspec's JSON encoder writes these numbers as null. MessagePack has them, so searching its
    bytes is enough for most values. Only if it finds something is the value walked through.
    """
    try:
        packed = _encode_msgpack(value)
        if _maybe_not_finite(packed) is None:
            return None
        plain = _decode_msgpack(packed)
    except OverflowError:  # an integer that is too large for MessagePack
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_to_builtin)
    left: list[tuple[str, Any]] = [("", plain)]
    while left:
        place, one = left.pop()
        if isinstance(one, float) and not isfinite(one):
            return NotFinite(place, number_name(one))
        if isinstance(one, dict):
            left += [(_member(place, name), inner) for name, inner in reversed(one.items())]
        elif isinstance(one, list | tuple):
            left += [(f"{place}[{at}]", one[at]) for at in range(len(one) - 1, -1, -1)]
    return None


def number_name(number: float) -> str:
    """Return the JavaScript name of a number that is not finite."""
    return _NUMBERS[str(float(number))]


def _member(place: str, name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        shown = _encode_json(name).decode() if isinstance(name, str) else repr(name)
        return f"{place}[{shown}]"
    return f"{place}.{name}" if place else name


def decode_as(value: Any, annotation: Any, field: str) -> Any:
    """Return a decoded plain value as the annotated type.

    Raises:
        BadMessage: the value does not fit; the error names ``field``.
    """
    try:
        return msgspec.convert(
            value, annotation, str_keys=True, dec_hook=_from_builtin, from_attributes=True
        )
    except TypeError as error:
        # msgspec refuses a union with a type from ``_from_builtin``: try its members one by one.
        for member in get_args(annotation) if isinstance(annotation, UnionType) else ():
            with suppress(BadMessage):
                return decode_as(value, member, field)
        raise BadMessage(field, str(error), unsupported=True) from None
    except Exception as error:  # noqa: BLE001 - a model's own validators may raise anything
        raise BadMessage(field, str(error)) from None


def _refuse_null_for_a_number(value: Any, what: str, name: str) -> None:
    found = not_finite(value)
    if found is not None:
        raise NotEncodable(
            f'{what}: {found.within(name)}; pass None or a string, or set format="msgpack"'
        )


class BodyCodec:
    """Encodes and decodes bodies under one size limit."""

    def __init__(
        self,
        *,
        content_type: str = JSON,
        limit: int = 1_048_576,
        pickle_key: bytes | None = None,
    ) -> None:
        if content_type not in (JSON, MESSAGEPACK, PICKLE):
            raise ConfigurationError(
                f"content_type={content_type!r} is unknown; use {JSON!r} or {MESSAGEPACK!r}"
            )
        if content_type == PICKLE and not pickle_key:
            raise ConfigurationError("pickle needs pickle_key=b'...': unsigned pickles are refused")
        if limit < 1024:
            raise ConfigurationError(f"limit={limit} is too small; allow at least 1024 bytes")
        self.content_type = content_type
        self.limit = limit
        self._pickle_key = pickle_key

    def encode(self, value: Any, *, what: str = "message", name: str = "") -> Body:
        """Return the encoded value. Errors begin with ``what``; places in the value with ``name``.

        Raises:
            NotEncodable: a part of it has no wire form; with JSON also NaN and infinity.
            MessageTooLarge: the bytes are over the limit.
        """
        try:
            data = self._write(value)
            if b"null" in data and self.content_type == JSON:
                _refuse_null_for_a_number(value, what, name)
        except NotEncodable:
            raise
        except Exception as error:
            raise NotEncodable(f"{what}: {error}") from error
        self.measure(data, what=what)
        return Body(self.content_type, data)

    def measure(self, data: bytes, *, what: str) -> None:
        """Raise MessageTooLarge if the data is over the limit."""
        if len(data) > self.limit:
            raise MessageTooLarge(
                f"{what} is {len(data):,} bytes, the limit is {self.limit:,}; store the data"
                " elsewhere and pass a reference, or raise max_message"
            )

    def decode(self, body: Body) -> Any:
        """Return the plain values in a body.

        Raises:
            BadMessage: the bytes do not have their media type, or it is not accepted.
        """
        if len(body.data) > self.limit:
            raise BadMessage("data", f"{len(body.data):,} bytes, the limit is {self.limit:,}")
        media_type = body.content_type
        if media_type != JSON:
            media_type = media_type.partition(";")[0].strip().lower()
        try:
            if media_type == JSON or media_type.endswith("+json"):
                return _decode_json(body.data)
            if media_type == MESSAGEPACK:
                return _decode_msgpack(body.data)
            if media_type == PICKLE:
                return self._unpickle(body.data)
        except BadMessage:
            raise
        except Exception as error:  # noqa: BLE001 - bytes from outside can break any decoder
            raise BadMessage("data", f"not valid {media_type}: {error}") from None
        raise BadMessage(
            "datacontenttype",
            f"{body.content_type!r} is not accepted; send {JSON} or {MESSAGEPACK}",
        )

    def _write(self, value: Any) -> bytes:
        if self.content_type == JSON:
            return _encode_json(value)
        if self.content_type == MESSAGEPACK:
            return _encode_msgpack(value)
        import pickle

        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        return self._sign(data) + data

    def _sign(self, data: bytes) -> bytes:
        assert self._pickle_key is not None
        return hmac.digest(self._pickle_key, data, hashlib.sha256)

    def _unpickle(self, signed: bytes) -> Any:
        if self._pickle_key is None:
            raise BadMessage("datacontenttype", "pickle is not accepted here; set pickle_key")
        signature, data = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(data)):
            raise BadMessage("data", "the pickle's signature does not verify with this pickle_key")
        import pickle

        return pickle.loads(data)
