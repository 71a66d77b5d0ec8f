"""SQL lives in ``.sql`` files; each query has a name and one line on what it guarantees."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

_HEADING = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load(package: str, filename: str) -> dict[str, str]:
    """The named queries of a file."""
    parts = _HEADING.split(read_text(package, filename))[1:]
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}


def read_text(package: str, filename: str) -> str:
    """A file that comes with the package. (importlib.resources would load 1.6 MiB for that.)"""
    data = pkgutil.get_data(package, filename)
    assert data is not None
    return data.decode()


def numbered(folder: Path) -> list[tuple[int, str]]:
    """Every migration's number and SQL, in order."""
    found = [file for file in folder.iterdir() if file.name[:4].isdigit()]
    return sorted((int(file.name[:4]), file.read_text(encoding="utf-8")) for file in found)
