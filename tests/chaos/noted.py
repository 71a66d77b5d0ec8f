"""Whether the books know of everything that publishers were told is published."""

from __future__ import annotations

from pathlib import Path

from chaos.append_log import AppendLog
from chaos.audit import Audit
from chaos.diary import Line, read
from chaos.story import SURE


def published(diaries: Path) -> list[Line]:
    """What publishers were told is published, in the order of the machine's clock."""
    return [line for line in read(diaries, "publisher-*.diary") if line.what in SURE]


def all_noted(diaries: Path, books: Audit | AppendLog) -> bool:
    """A broker that only carries may have some of it alone, when the books were out of reach."""
    noted = {entry.job for entry in books.so_far() if entry.what == "published"}
    return all(line.job in noted for line in published(diaries))
