"""Lua lives in ``.lua`` files; each script has a name and one line on what it guarantees."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from umbel.drivers.queries import load, read_text
from umbel.errors import BadMessage

_encode = msgspec.msgpack.Encoder().encode

Arguments = Sequence[str | bytes | int | float]
"""What a script is given: most take one, packed."""


class Script(msgspec.Struct, frozen=True):
    """A script as the server knows it: by its digest, once it has seen the text."""

    text: bytes
    digest: str


def scripts(package: str, filename: str, *shared: str, routing: bool = False) -> dict[str, Script]:
    """The named scripts of a file.

    Each begins with the key space (``keys.lua``), the moves that all of them share (``jobs.lua``),
    those with routes where they are wanted (``routing.lua``), and those of the room's own files
    that are ``shared``.
    """
    common = ("jobs.lua", "routing.lua") if routing else ("jobs.lua",)
    parts = [read_text("umbel.drivers.redis", name) for name in common]
    return _begun(package, filename, *parts, *(read_text(package, name) for name in shared))


def lean_scripts(package: str, filename: str) -> dict[str, Script]:
    """The same without any moves: making them anew takes the server longer than a small step."""
    return _begun(package, filename)


def root_of(namespace: str) -> str:
    """What every key of a namespace begins with. The braces keep them on one node of a cluster."""
    return f"umbel:{{{namespace}}}"


def pack(*values: Any) -> bytes:
    """A script's arguments, as it takes them apart again.

    Raises:
        BadMessage: text that has no bytes, or a number beyond 64 bits.
    """
    try:
        return _encode(values)
    except (UnicodeEncodeError, OverflowError) as error:
        raise BadMessage("value", f"cannot be written: {error}") from None


def octets(data: bytes) -> msgspec.Raw:
    """Bytes as a script takes them: packed like a text, for that is the only kind Lua has."""
    size = len(data)
    if size < 32:
        return msgspec.Raw(bytes((0xA0 | size,)) + data)
    if size < 2**16:
        return msgspec.Raw(b"\xda" + size.to_bytes(2, "big") + data)
    return msgspec.Raw(b"\xdb" + size.to_bytes(4, "big") + data)


def _begun(package: str, filename: str, *parts: str) -> dict[str, Script]:
    begin = "\n".join([read_text("umbel.drivers.redis", "keys.lua"), *parts])
    return {name: _script(f"{begin}\n{text}\n") for name, text in load(package, filename).items()}


def _script(text: str) -> Script:
    whole = text.encode()
    return Script(whole, hashlib.sha1(whole, usedforsecurity=False).hexdigest())
