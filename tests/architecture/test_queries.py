"""Each query of a file has a name of its own: the last of two would be taken, without a word."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "umbel"
FILES = sorted([*SOURCE.rglob("*.sql"), *SOURCE.rglob("*.lua")])


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_no_two_queries_of_a_file_have_one_name(file: Path) -> None:
    names = Counter(re.findall(r"^-- name: (\w+)$", file.read_text(), re.MULTILINE))
    assert [name for name, times in names.items() if times > 1] == []
