"""SQL lives in ``.sql`` files; each query has a name and one line on what it guarantees."""

from __future__ import annotations

import re
from importlib.resources import files

_HEADING = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load(package: str, filename: str) -> dict[str, str]:
    """The named queries of a file."""
    text = files(package).joinpath(filename).read_text(encoding="utf-8")
    parts = _HEADING.split(text)[1:]
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}
