"""Text for the screen: foreign text made harmless, short numbers, symbols that can be shown."""

from __future__ import annotations

from datetime import datetime

import msgspec

from umbel.terminal import make_visible

_MAX_CELL = 400
"""Characters of a foreign text that are looked at for one cell."""
_ASCII = {
    "─": "-",
    "●": "*",
    "○": "o",
    "█": "#",
    "░": ".",
    "…": "~",
    "↑": "^",
    "↓": "v",
    "·": "-",
    "µ": "u",
    "≈": "~",
}


class Glyphs(msgspec.Struct, frozen=True):
    """Which characters the terminal can show."""

    ascii_only: bool = False

    def own(self, text: str) -> str:
        """Return text of Umbel itself, with symbols that the terminal can show."""
        if not self.ascii_only:
            return text
        return "".join(_ASCII.get(c, c if c.isascii() else "?") for c in text)

    def foreign(self, value: object, *, limit: int = _MAX_CELL) -> str:
        """Return text from outside in one line, without control characters, cut to a length."""
        cut = str(value)[:limit].replace("\t", " ").replace("\n", " ")
        text = str(make_visible(cut, lines=False))
        if self.ascii_only:
            text = text.encode("ascii", "backslashreplace").decode()
        return text


def number(value: float) -> str:
    """Return a number in at most six characters: ``1,204``, ``12.3k``, ``1.2M``."""
    if value < 10_000:
        return f"{value:,.0f}"
    if value < 1_000_000:
        return f"{value / 1000:.1f}k" if value < 100_000 else f"{value / 1000:.0f}k"
    return f"{value / 1_000_000:.1f}M"


def rate(value: float | None) -> str:
    """Return how often something happens in a second; "" if it is not known."""
    if value is None:
        return ""
    return number(value) if value >= 10 or not value else f"{value:.1f}" if value >= 0.1 else "<0.1"


def span(seconds: float | None) -> str:
    """Return a duration in at most six characters; "" if there is none."""
    if seconds is None:
        return ""
    if seconds < 0.001:
        return "<1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size, most in (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 86_400)):
        if seconds < most:
            digits = 1 if seconds < 10 * size else 0
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def clock(seconds: float | None) -> str:
    """Return the time of day here; "" if there is none or it cannot be shown."""
    try:
        return "" if seconds is None else f"{datetime.fromtimestamp(seconds):%H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return ""
