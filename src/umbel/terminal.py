"""Text on its way to a terminal: what comes from outside is shown and never obeyed.

Names of tasks, errors, results and reasons are data of others. Escape sequences in them could
rename a window, hide lines or turn text around. So everything that is written for people passes
through ``visible``, and JSON through ``visible_json``; ``write`` is how it gets into a stream.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TextIO


class Shown(str):
    """Text that is safe to write: what came from outside is escaped, the colours are our own."""

    __slots__ = ()


def visible(text: str, *, lines: bool = True) -> Shown:
    """The text with all control characters escaped, as in ``\\x1b``: C0, C1, bidi, invisible ones.

    Tabs stay, and so do line ends unless ``lines`` is false: for names and for all that must not
    look like a line of its own.
    """
    if isinstance(text, Shown):
        return text
    if text.isprintable():
        return Shown(text)
    kept = "\n\t" if lines else "\t"
    return Shown("".join(c if c in kept or _is_harmless(c) else _escaped(c) for c in text))


def _is_harmless(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def visible_json(text: str) -> Shown:
    """A JSON document that says the same, with all control characters in strings as ``\\uXXXX``."""
    # Between its strings a document has no character to escape but line ends.
    if text.isprintable():
        return Shown(text)
    return Shown(re.sub(r"[^\x20-\x7e\n]", _escaped_in_json, text))


def _escaped_in_json(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def styled(text: str, code: str) -> Shown:
    """The text in a colour or style of the terminal, by the numbers of its SGR sequence."""
    return Shown(f"\x1b[{code}m{visible(text)}\x1b[0m") if text else Shown()


def joined(parts: list[str], between: str = "") -> Shown:
    """Parts as one text; what is not ``Shown`` yet is made visible."""
    return Shown(visible(between).join(map(visible, parts)))


def write(stream: TextIO, *parts: str, end: str = "\n") -> None:
    """Write a text to a stream."""
    stream.write(joined([*parts, Shown(end)]))
