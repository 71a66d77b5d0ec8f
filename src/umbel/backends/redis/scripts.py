"""Loading Lua scripts from the ``.lua`` files, and packing their arguments."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from umbel.backends.joins import NEVER_SEALED
from umbel.backends.queries import load, read_text
from umbel.errors import BadMessage
from umbel.messages import DEFAULT_KINDS, GRAPH_TASK, KINDS
from umbel.messages.joins import cancel_reason

_PACKAGE = "umbel.backends.redis"
_COMMON_FILES = (
    *("jobs.lua", "entries.lua", "counting.lua", "ending.lua", "inserting.lua", "routing.lua"),
)
"""Files whose functions every script may use; each file uses only those before it."""
_CONSTANTS = {
    "$kinds": ", ".join(f"'{kind}'" for kind in KINDS),
    "$default_kinds": ", ".join(f"'{kind}'" for kind in DEFAULT_KINDS),
    "$never_sealed": NEVER_SEALED,
    "$not_succeeded": cancel_reason("success"),
    "$not_needed": cancel_reason("failure"),
    "$graph_task": GRAPH_TASK,
}
"""What the scripts share with Python code."""
_encode = msgspec.msgpack.Encoder().encode
_DECLARATION = re.compile(r"^(?=local )", re.MULTILINE)
_NAMES = re.compile(r"^local (?:function )?([\w, ]+)", re.MULTILINE)
_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"--.*")

Arguments = Sequence[str | bytes | int | float]
"""The arguments of a script: most scripts take one, a packed list."""


class Script(msgspec.Struct, frozen=True):
    """A script's text, and the digest by which a server that has seen the text knows it."""

    text: bytes
    digest: str


def scripts(filename: str, *shared: str) -> dict[str, Script]:
    """Return the named scripts of a file.

    Each begins with the keys (``keys.lua``), followed by the functions that it uses of the common
    files and of ``shared``. Unused functions are left out, because the server creates all functions
    anew for each call, which takes longer than a small script.
    """
    keys = read_text(_PACKAGE, "keys.lua")
    pieces = [piece for file in (*_COMMON_FILES, *shared) for piece in _pieces(file)]
    return {
        name: _script("\n".join([keys, *_used(pieces, text), text, ""]))
        for name, text in load(_PACKAGE, filename).items()
    }


class _Piece(NamedTuple):
    """One declaration at the top level of a file: its text, its names, and the words in it."""

    text: str
    names: frozenset[str]
    words: frozenset[str]


@cache
def _pieces(filename: str) -> list[_Piece]:
    _, *parts = _DECLARATION.split(read_text(_PACKAGE, filename))
    return [_Piece(part.strip(), _names(part), _words(part)) for part in parts]


def _used(pieces: Sequence[_Piece], script: str) -> list[str]:
    """Return the pieces that a script uses, directly or through other pieces, in their order."""
    used: list[str] = []
    wanted = _words(script) - _names(script)
    for piece in reversed(pieces):  # each piece uses only pieces before it
        if piece.names & wanted:
            used.insert(0, piece.text)
            wanted |= piece.words
    return used


def _names(text: str) -> frozenset[str]:
    """Return the names that are declared at the top level."""
    return frozenset(word for names in _NAMES.findall(text) for word in _WORD.findall(names))


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(_COMMENT.sub("", text)))


def root_of(namespace: str) -> str:
    """Return the beginning of all keys of a namespace. The braces put them on one cluster node."""
    return f"umbel:{{{namespace}}}"


def pack(*values: Any) -> bytes:
    """Return the packed arguments of a script.

    Raises:
        BadMessage: a text that cannot be encoded, or a number beyond 64 bits.
    """
    try:
        return _encode(values)
    except (UnicodeEncodeError, OverflowError) as error:
        raise BadMessage("value", f"cannot be written: {error}") from None


def pack_bytes(data: bytes) -> msgspec.Raw:
    """Return bytes packed as a MessagePack string, because the server's Lua reads no other type."""
    size = len(data)
    if size < 32:
        return msgspec.Raw(bytes((0xA0 | size,)) + data)
    if size < 2**16:
        return msgspec.Raw(b"\xda" + size.to_bytes(2, "big") + data)
    return msgspec.Raw(b"\xdb" + size.to_bytes(4, "big") + data)


def _script(text: str) -> Script:
    for name, value in _CONSTANTS.items():
        text = text.replace(name, value)
    data = text.encode()
    return Script(data, hashlib.sha1(data, usedforsecurity=False).hexdigest())
