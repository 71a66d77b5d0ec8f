"""A wrong call is a type error, at its own line; a right one is not, for mypy and pyright."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYRIGHT = Path("/var/tmp/umbel-test-servers/node/node_modules/pyright/index.js")
SNIPPETS = ("correct.py", "mixed.py", "wrong.py", "correct_canvases.py", "wrong_canvases.py")
_ERROR = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: (?P<text>.*)  \[(?P<code>[\w-]+)\]$")
_EXPECTED = re.compile(r"  # E: ([\w -]+)$")
Said = dict[str, dict[int, dict[str, str]]]
"""File, line, code, text."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """What mypy says of every snippet."""
    cache = tmp_path_factory.mktemp("mypy")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(cache), "--no-error-summary"]
    command += ["--config-file", "pyproject.toml", "--no-pretty", "--hide-error-context"]
    command += [str((HERE / name).relative_to(ROOT)) for name in SNIPPETS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    said: Said = {name: {} for name in SNIPPETS}
    for line in done.stdout.splitlines():
        match = _ERROR.match(line)
        if match and Path(match["file"]).name in said:
            name, at = Path(match["file"]).name, int(match["line"])
            said[name].setdefault(at, {})[match["code"]] = match["text"]
        elif match:
            pytest.fail(f"not about a snippet: {line}")
    return said


@pytest.mark.parametrize("name", ["correct.py", "correct_canvases.py", "mixed.py"])
def test_right_uses_pass_and_have_the_right_types(found: Said, name: str) -> None:
    assert found[name] == {}


@pytest.mark.parametrize("name", ["wrong.py", "wrong_canvases.py"])
def test_every_mistake_is_found_at_its_own_line_and_nothing_else(found: Said, name: str) -> None:
    assert {number: set(codes) for number, codes in found[name].items()} == _expected(name)


def _expected(name: str) -> dict[int, set[str]]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return {
        number: set(match[1].split())
        for number, line in enumerate(lines, 1)
        if (match := _EXPECTED.search(line))
    }


@pytest.mark.skipif(not PYRIGHT.exists(), reason="there is no pyright")
def test_pyright_finds_the_same_mistakes_and_no_others(tmp_path: Path) -> None:
    shutil.copytree(HERE, tmp_path / "snippets")
    settings = {
        "include": ["snippets"],
        "exclude": ["snippets/test_types.py"],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "extraPaths": [str(ROOT / "src")],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = ["node", str(PYRIGHT), "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    said: dict[str, set[int]] = {name: set() for name in SNIPPETS}
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        said[Path(one["file"]).name].add(one["range"]["start"]["line"] + 1)
    assert said == {name: set(_expected(name)) for name in SNIPPETS}, done.stdout


def test_the_error_names_the_parameter(found: Said) -> None:
    texts = [codes.get("arg-type", "") for codes in found["wrong.py"].values()]
    assert any('Argument 2 to "delay" of "Task" has incompatible type "str"' in t for t in texts)


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src" / "umbel" / "py.typed").exists()
