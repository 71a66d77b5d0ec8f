"""The page on publishing without Umbel shows the very programs that the tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "publish-without-umbel.md"
PROGRAMS = sorted(path for path in (ROOT / "examples" / "foreign").iterdir() if path.is_file())
LANGUAGES = {".py": "python", ".sh": "sh", ".js": "js"}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_the_page_shows_the_program_as_it_is(program: Path) -> None:
    shown = f"\n```{LANGUAGES[program.suffix]}\n{program.read_text()}```\n"
    assert PAGE.read_text().count(shown) == 1
