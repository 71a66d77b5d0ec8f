"""Lays out a table: one line for each row, never wider than the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

_GAP = "  "
_ELLIPSIS = "…"
_MIN_LAST_COLUMN_WIDTH = 16
_MIN_COLUMN_WIDTH = 8
_NEVER_CUT = ("id", "job")
"""Columns of ids, which are of no use if they are cut."""


def lay_out(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    optional: Sequence[str] = (),
    width: int | None = None,
) -> Iterator[list[str]]:
    """Return the head and the rows as padded cells that fit into ``width`` columns with gaps.

    If the table is too wide, first its last column is cut, then columns in ``optional`` are left
    out, in that order, then the widest text columns are cut. Numbers and ids are cut only if the
    table does not fit otherwise. ``width=None`` is for files and pipes, which have no limit.
    """
    shown = list(range(len(head)))
    widths = [max(map(display_width, column)) for column in zip(head, *rows, strict=True)]
    if width is not None:
        shown = _leave_out(head, widths, optional, width)
        _shrink(head, widths, shown, right, width)
    for line in (head, *rows):
        yield [_fit(line[at], widths[at], align_right=head[at] in right) for at in shown]


def _leave_out(
    head: Sequence[str], widths: Sequence[int], optional: Sequence[str], width: int
) -> list[int]:
    """Return the places of the columns that are shown."""
    last = len(head) - 1
    shown = list(range(len(head)))
    for name in optional:
        least = [
            min(widths[at], _MIN_LAST_COLUMN_WIDTH) if at == last else widths[at] for at in shown
        ]
        if _total(least) <= width:
            break
        shown = [at for at in shown if head[at] != name]
    return shown


def _shrink(
    head: Sequence[str],
    widths: list[int],
    shown: Sequence[int],
    right: Sequence[str],
    width: int,
) -> None:
    """Reduce the widths of columns until the table fits."""
    texts = [at for at in shown if head[at] not in (*right, *_NEVER_CUT)]
    last = [at for at in shown[-1:] if at in texts]
    for places, least in (
        (last, _MIN_LAST_COLUMN_WIDTH),
        (texts, _MIN_COLUMN_WIDTH),
        (texts, 1),
        (shown, 1),
    ):
        while (over := _total([widths[at] for at in shown]) - width) > 0:
            widest = max(places, key=lambda at: widths[at], default=None)
            if widest is None or widths[widest] <= least:
                break
            # Of several columns, only the widest loses, one character at a time.
            widths[widest] = max(least, widths[widest] - (over if len(places) == 1 else 1))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _fit(cell: str, width: int, *, align_right: bool) -> str:
    text = cut(cell, width)
    padding = " " * (width - display_width(text))
    return padding + text if align_right else text + padding


def cut(text: str, width: int) -> str:
    """Return the text, or its beginning with an ellipsis if it is wider than ``width``."""
    if display_width(text) <= width:
        return text
    kept, used = "", 1
    for character in text:
        used += display_width(character)
        if used > width:
            break
        kept += character
    return kept.rstrip() + _ELLIPSIS if width > 0 else ""


def display_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
