"""A wrong call is a type error, at its own line; a right one is not. Told by mypy, strictly."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SNIPPETS = ("correct.py", "mixed.py", "wrong.py")
_ERROR = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: (?P<text>.*)  \[(?P<code>[\w-]+)\]$")
_EXPECTED = re.compile(r"# E: ([\w-]+)")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, tuple[str, str]]]:
    """What mypy says of every snippet: file, line, code, text."""
    cache = tmp_path_factory.mktemp("mypy")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(cache), "--no-error-summary"]
    command += ["--config-file", "pyproject.toml", "--no-pretty", "--hide-error-context"]
    command += [str((HERE / name).relative_to(ROOT)) for name in SNIPPETS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    said: dict[str, dict[int, tuple[str, str]]] = {name: {} for name in SNIPPETS}
    for line in done.stdout.splitlines():
        match = _ERROR.match(line)
        if match and Path(match["file"]).name in said:
            name, at = Path(match["file"]).name, int(match["line"])
            said[name][at] = (match["code"], match["text"])
        elif match:
            pytest.fail(f"not about a snippet: {line}")
    return said


@pytest.mark.parametrize("name", ["correct.py", "mixed.py"])
def test_right_uses_pass_and_have_the_right_types(
    found: dict[str, dict[int, tuple[str, str]]], name: str
) -> None:
    assert found[name] == {}


def test_every_mistake_is_found_at_its_own_line_and_nothing_else(
    found: dict[str, dict[int, tuple[str, str]]],
) -> None:
    lines = (HERE / "wrong.py").read_text(encoding="utf-8").splitlines()
    expected = {
        number: match[1]
        for number, line in enumerate(lines, 1)
        if (match := _EXPECTED.search(line)) and not line.startswith("Checked")
    }
    codes = {number: code for number, (code, _) in found["wrong.py"].items()}
    told = {n: found["wrong.py"].get(n) for n in codes.keys() | expected.keys()}
    assert codes == expected, {n: t for n, t in told.items() if codes.get(n) != expected.get(n)}


def test_the_error_names_the_parameter(found: dict[str, dict[int, tuple[str, str]]]) -> None:
    texts = [text for code, text in found["wrong.py"].values() if code == "arg-type"]
    assert any('Argument 2 to "delay" of "Task" has incompatible type "str"' in t for t in texts)


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src" / "umbel" / "py.typed").exists()
