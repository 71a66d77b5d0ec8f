"""Prints results: JSON for programs, aligned tables and lines for people."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from math import isfinite
from typing import Any

import msgspec

from umbel.cli.tables import lay_out
from umbel.messages import number_name
from umbel.terminal import (
    SafeText,
    add_style,
    join_texts,
    make_json_visible,
    make_visible,
    write,
)

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
    head: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    right: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print a table to stdout, one line for each row.

    Columns named in ``right`` are aligned to the right. On a terminal, cells are cut to its width,
    and columns named in ``optional`` are left out if it is too narrow.
    """
    cells = [["" if cell is None else _one_line(str(cell)) for cell in row] for row in rows]
    width = shutil.get_terminal_size().columns if on_terminal() else None
    lines = lay_out(head, cells, right=right, optional=optional, width=width)
    for place, line in enumerate(lines):
        while line and not line[-1].strip():
            line.pop()
        line[-1:] = [cell.rstrip() for cell in line[-1:]]
        parts: list[str] = [_bold(cell) if place == 0 else _colored_cell(cell) for cell in line]
        write(sys.stdout, join_texts(parts, "  "))


def _colored_cell(cell: str) -> SafeText:
    """Return a padded cell, with its word in color."""
    word = cell.strip()
    if not word:
        return SafeText(cell)
    before, _, after = cell.partition(word)
    return join_texts([before, colored(word), after])


def _bold(cell: str) -> SafeText:
    return add_style(cell, "1") if _has_style() else SafeText(cell)


def _one_line(cell: str) -> str:
    return make_visible(cell.replace("\n", " ").replace("\t", " "), lines=False)


def _has_style() -> bool:
    is_dumb = os.environ.get("TERM") == "dumb"
    return on_terminal() and not is_dumb and not os.environ.get("NO_COLOR")


def colored(word: str) -> SafeText:
    """Return a word in its color if stdout is a terminal that wants colors."""
    style = STYLES.get(word)
    if style is None or not _has_style():
        return make_visible(word, lines=False)
    return add_style(word, _CODES[style])
