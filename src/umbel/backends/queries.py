"""Loads SQL from ``.sql`` files. Each query has a name and a line that says what it guarantees."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

from umbel.messages import KINDS

_HEADING = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load(package: str, filename: str) -> dict[str, str]:
    """Return the queries of a file, by name."""
    parts = _HEADING.split(read_text(package, filename))[1:]
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}


def read_text(package: str, filename: str) -> str:
    """Return the text of a file in a package. (importlib.resources would load 1.6 MiB for that.)"""
    data = pkgutil.get_data(package, filename)
    assert data is not None
    return data.decode()


def numbered(folder: Path) -> list[tuple[int, str]]:
    """Return the number and the SQL of every migration, in order.

    ``$kinds`` stands for the kinds of tasks: a table refuses a kind that no worker could take.
    """
    kinds = ", ".join(f"'{kind}'" for kind in KINDS)
    found = [file for file in folder.iterdir() if file.name[:4].isdigit()]
    texts = {int(file.name[:4]): file.read_text(encoding="utf-8") for file in found}
    return sorted((number, sql.replace("$kinds", kinds)) for number, sql in texts.items())
