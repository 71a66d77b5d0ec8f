"""Text for a terminal: control characters in foreign data are shown, not executed.

Names of tasks, errors, results and reasons come from others. Escape sequences in them could rename
a window, hide lines or reverse text. All output for people therefore passes through
``make_visible``, and JSON through ``make_json_visible``. ``write`` writes it to a stream.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TextIO


class SafeText(str):
    """Text that is safe to write: foreign data in it is escaped; its colours are Umbel's."""

    __slots__ = ()


def make_visible(text: str, *, lines: bool = True) -> SafeText:
    """Return the text with control characters escaped, as in ``\\x1b``: C0, C1, bidi, invisible.

    Tabs are kept. Line ends are kept unless ``lines`` is false, which is for names and other text
    that must not look like a separate line.
    """
    if isinstance(text, SafeText):
        return text
    if text.isprintable():
        return SafeText(text)
    kept = "\n\t" if lines else "\t"
    return SafeText("".join(c if c in kept or _is_harmless(c) else _escape(c) for c in text))


def _is_harmless(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def make_json_visible(text: str) -> SafeText:
    """Return an equal JSON document, with control characters in strings as ``\\uXXXX``."""
    # Outside its strings, a document has no control characters except line ends.
    if text.isprintable():
        return SafeText(text)
    return SafeText(re.sub(r"[^\x20-\x7e\n]", _escape_in_json, text))


def _escape_in_json(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def add_style(text: str, code: str) -> SafeText:
    """Return the text in a colour or style, given as the numbers of an SGR sequence."""
    return SafeText(f"\x1b[{code}m{make_visible(text)}\x1b[0m") if text else SafeText()


def join_texts(parts: list[str], separator: str = "") -> SafeText:
    """Join texts; each is made visible if it is not ``SafeText`` yet."""
    return SafeText(make_visible(separator).join(map(make_visible, parts)))


def write(stream: TextIO, *parts: str, end: str = "\n") -> None:
    """Write a text to a stream."""
    stream.write(join_texts([*parts, SafeText(end)]))
