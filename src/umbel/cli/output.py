"""Prints results: JSON for programs, aligned tables and lines for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from math import isfinite
from typing import Any, Literal

import msgspec

from umbel.messages import number_name
from umbel.terminal import SafeText, add_style, make_json_visible, make_visible, write

_MIN_LAST_COLUMN_WIDTH = 24
"""Characters; the last column is folded on terminals that are too narrow for the table."""

_CODES = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
STYLES = {
    "running": "cyan",
    "succeeded": "green",
    "buried": "red",
    "cancelled": "yellow",
    "expired": "yellow",
    "scheduled": "blue",
    "waiting": "blue",
    "working": "green",
    "stopping": "yellow",
    "silent": "red",
    "paused": "yellow",
    "ready": "green",
    "drained": "yellow",
    "go": "green",
    "aborted": "yellow",
}
"""The colors of words that fill a cell."""


def on_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def print_line(*parts: str) -> None:
    """Print one line to stdout. A line end inside a part is escaped."""
    write(sys.stdout, *(make_visible(part, lines=False) for part in parts))


def print_note(*parts: str) -> None:
    """Print a text about the result to stderr, of one line or several."""
    write(sys.stderr, *parts)
    sys.stderr.flush()


def print_json(value: Any) -> None:
    """Print one JSON document to stdout."""
    text = as_json(value)
    shown = msgspec.json.format(text, indent=2) if on_terminal() else text
    write(sys.stdout, make_json_visible(shown))


def as_json(value: Any) -> str:
    """Return a value as JSON. NaN and infinity, which JSON does not have, become text."""
    text = msgspec.json.encode(value, enc_hook=repr)
    if b"null" in text:
        text = msgspec.json.encode(_replace_non_finite(value), enc_hook=repr)
    return text.decode()


def _replace_non_finite(value: Any) -> Any:
    """Return a copy of plain data. It uses no recursion, because the data may have any depth."""
    whole = [value]
    left: list[tuple[Any, Any]] = [(whole, 0)]
    while left:
        holder, place = left.pop()
        one = holder[place]
        if isinstance(one, float) and not isfinite(one):
            holder[place] = number_name(one)
        elif isinstance(one, dict):
            holder[place] = copy = dict(one)
            left += [(copy, name) for name in copy]
        elif isinstance(one, list | tuple):
            holder[place] = items = list(one)
            left += [(items, at) for at in range(len(items))]
    return whole[0]


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = ()
) -> None:
    """Print a table to stdout; columns named in ``right`` are aligned to the right."""
    cells = [["" if cell is None else _one_line(str(cell)) for cell in row] for row in rows]
    if on_terminal() and os.environ.get("TERM") != "dumb":
        _rich_table(head, cells, right)
    else:
        _plain_table(head, cells, right)


def _plain_table(head: Sequence[str], rows: list[list[str]], right: Sequence[str]) -> None:
    lines = [list(head), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        aligned = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(line, widths, head, strict=True)
        ]
        print_line("  ".join(aligned).rstrip())


def _rich_table(head: Sequence[str], rows: list[list[str]], right: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        # Only the last column is folded: half a name or half an id is of no use.
        justify: Literal["left", "right"] = "right" if name in right else "left"
        shown.add_column(name, justify=justify, no_wrap=name != head[-1], overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    console = Console(highlight=False)
    least = sum(max(map(len, column)) + 2 for column in zip(head, *rows, strict=True))
    last = max(len(row[-1]) for row in rows) if rows else 0
    console.width = max(console.width, least - last + min(last, _MIN_LAST_COLUMN_WIDTH))
    with console.capture() as drawn:
        console.print(shown, crop=False, no_wrap=True)
    write(sys.stdout, SafeText(drawn.get()), end="")  # cells are escaped; the rest comes from rich


def _one_line(cell: str) -> str:
    return make_visible(cell.replace("\n", " "), lines=False)


def colored(word: str) -> SafeText:
    """Return a word in its color if stdout is a terminal that wants colors."""
    style = STYLES.get(word)
    plain = not on_terminal() or os.environ.get("NO_COLOR") or style is None
    return make_visible(word, lines=False) if plain else add_style(word, _CODES[style or ""])
