"""The audit log as a file for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from umbel.clock import iso_time
from umbel.control.audit import AuditLine
from umbel.dashboard.visibility import visible

_FIELDS = ("user", "address", "action", "subject", "reason", "outcome")
_FORMULA = ("=", "+", "-", "@")
"""A spreadsheet runs a cell that begins with one of these."""


def audit_csv(lines: Iterable[AuditLine]) -> str:
    """Return the lines as CSV, newest first. No cell is a formula."""
    target = io.StringIO()
    writer = csv.writer(target)
    writer.writerow(("time", *_FIELDS))
    for line in lines:
        cells = (visible(getattr(line, name), 500) for name in _FIELDS)
        writer.writerow((iso_time(line.at), *map(_as_text, cells)))
    return target.getvalue()


def _as_text(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA) else cell
