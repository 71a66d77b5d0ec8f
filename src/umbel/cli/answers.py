"""Answers: JSON for programs, aligned tables for people, plain text when nobody looks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from math import isfinite
from typing import Any, Literal

import msgspec

from umbel.messages import number_name
from umbel.terminal import Shown, styled, visible, visible_json, write

_NARROW = 24
"""The least width of a folded last column, on terminals too small for the table."""

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
"""Words that have a colour wherever they fill a cell."""


def on_terminal() -> bool:
    """Whether somebody looks at stdout."""
    return sys.stdout.isatty()


def say(*parts: str) -> None:
    """A line for people. A line end in what it is made of does not begin another one."""
    write(sys.stdout, *(visible(part, lines=False) for part in parts))


def note(*parts: str) -> None:
    """A text on stderr for people, of one line or several: not the answer, but about it."""
    write(sys.stderr, *parts)
    sys.stderr.flush()


def answer(value: Any) -> None:
    """One JSON document on stdout."""
    text = as_json(value)
    shown = msgspec.json.format(text, indent=2) if on_terminal() else text
    write(sys.stdout, visible_json(shown))


def as_json(value: Any) -> str:
    """A value as JSON: NaN and infinity, which it does not have, as text."""
    text = msgspec.json.encode(value, enc_hook=repr)
    if b"null" in text:
        text = msgspec.json.encode(_with_named_numbers(value), enc_hook=repr)
    return text.decode()


def _with_named_numbers(value: Any) -> Any:
    """A copy of plain data. Without recursion: what comes from outside may be of any depth."""
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


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """A table on stdout; columns named in ``right`` are numbers."""
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
        say("  ".join(aligned).rstrip())


def _rich_table(head: Sequence[str], rows: list[list[str]], right: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        # Only the last column is folded: half a name or half an id helps nobody.
        justify: Literal["left", "right"] = "right" if name in right else "left"
        shown.add_column(name, justify=justify, no_wrap=name != head[-1], overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    console = Console(highlight=False)
    least = sum(max(map(len, column)) + 2 for column in zip(head, *rows, strict=True))
    last = max(len(row[-1]) for row in rows) if rows else 0
    console.width = max(console.width, least - last + min(last, _NARROW))
    with console.capture() as drawn:
        console.print(shown, crop=False, no_wrap=True)
    write(sys.stdout, Shown(drawn.get()), end="")  # its cells are visible, the rest is rich's own


def _one_line(cell: str) -> str:
    return visible(cell.replace("\n", " "), lines=False)


def coloured(word: str) -> Shown:
    """A word in its colour, on a terminal that wants colours."""
    style = STYLES.get(word)
    plain = not on_terminal() or os.environ.get("NO_COLOR") or style is None
    return visible(word, lines=False) if plain else styled(word, _CODES[style or ""])
