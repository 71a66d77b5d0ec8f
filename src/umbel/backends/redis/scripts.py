"""Lua lives in ``.lua`` files; each script has a name and one line on what it guarantees."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from umbel.backends.queries import load, read_text
from umbel.errors import BadMessage

_PACKAGE = "umbel.backends.redis"
_encode = msgspec.msgpack.Encoder().encode
_DECLARED = re.compile(r"^(?=local )", re.MULTILINE)
_NAMES = re.compile(r"^local (?:function )?([\w, ]+)", re.MULTILINE)
_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"--.*")

Arguments = Sequence[str | bytes | int | float]
"""What a script is given: most take one, packed."""


class Script(msgspec.Struct, frozen=True):
    """A script as the server knows it: by its digest, once it has seen the text."""

    text: bytes
    digest: str


def scripts(filename: str, *shared: str) -> dict[str, Script]:
    """The named scripts of a file.

    Each begins with the key space (``keys.lua``), and what it uses of the moves that all of them
    share (``jobs.lua``, ``routing.lua``) and of the room's own files that are ``shared``: the
    server makes all of it anew for each call, which takes longer than a small step.
    """
    keys = read_text(_PACKAGE, "keys.lua")
    pieces = [piece for file in ("jobs.lua", "routing.lua", *shared) for piece in _pieces(file)]
    return {
        name: _script("\n".join([keys, *_used(pieces, text), text, ""]))
        for name, text in load(_PACKAGE, filename).items()
    }


class _Piece(NamedTuple):
    """What declares some names at the top of a file, and the words in it."""

    text: str
    names: frozenset[str]
    words: frozenset[str]


@cache
def _pieces(filename: str) -> list[_Piece]:
    _, *parts = _DECLARED.split(read_text(_PACKAGE, filename))
    return [_Piece(part.strip(), _names(part), _words(part)) for part in parts]


def _used(pieces: Sequence[_Piece], script: str) -> list[str]:
    """Those that a script needs, and what they need, in their order."""
    kept: list[str] = []
    wanted = _words(script) - _names(script)
    for piece in reversed(pieces):  # each uses only what stands before it
        if piece.names & wanted:
            kept.insert(0, piece.text)
            wanted |= piece.words
    return kept


def _names(text: str) -> frozenset[str]:
    """What is declared there, at the top."""
    return frozenset(word for names in _NAMES.findall(text) for word in _WORD.findall(names))


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(_COMMENT.sub("", text)))


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


def _script(text: str) -> Script:
    whole = text.encode()
    return Script(whole, hashlib.sha1(whole, usedforsecurity=False).hexdigest())
