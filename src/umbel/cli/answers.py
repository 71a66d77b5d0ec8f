"""Answers: JSON for programs, aligned tables for people, plain text when nobody looks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

_NARROW = 24
"""The least width of a folded last column, on terminals too small for the table."""

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


def say(text: str = "") -> None:
    """A line for people."""
    print(printable(text))


def printable(text: str) -> str:
    """Escape sequences in data from outside never reach a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def answer(value: Any) -> None:
    """One JSON document on stdout."""
    text = msgspec.json.encode(value, enc_hook=repr)
    print((msgspec.json.format(text, indent=2) if on_terminal() else text).decode())


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """A table on stdout; columns named in ``right`` are numbers."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if on_terminal() and os.environ.get("TERM") != "dumb":
        _rich_table(head, cells, right)
    else:
        _plain_table(head, cells, right)


def _plain_table(head: Sequence[str], rows: list[list[str]], right: Sequence[str]) -> None:
    lines = [list(head), *([_one_line(cell) for cell in row] for row in rows)]
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
        shown.add_row(*(Text(_one_line(cell), style=STYLES.get(cell, "")) for cell in row))
    console = Console(highlight=False)
    least = sum(max(map(len, column)) + 2 for column in zip(head, *rows, strict=True))
    last = max(len(row[-1]) for row in rows) if rows else 0
    console.width = max(console.width, least - last + min(last, _NARROW))
    console.print(shown, crop=False, no_wrap=True)


def _one_line(cell: str) -> str:
    return "".join(c if c.isprintable() else " " for c in cell)


def coloured(word: str) -> str:
    """A word in its colour, on a terminal that wants colours."""
    import click

    style = STYLES.get(word)
    plain = not on_terminal() or os.environ.get("NO_COLOR") or style is None
    return word if plain else click.style(word, fg=style)
