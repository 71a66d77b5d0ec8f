"""The drawing in ARCHITECTURE.md and the code are the same."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from umbel.testing.brokers import TOPICS as BROKER_TOPICS
from umbel.testing.stores import TOPICS as STORE_TOPICS

ROOT = Path(__file__).parents[2]
ROOMS = sorted(
    path for path in (ROOT / "src" / "umbel").iterdir() if (path / "__init__.py").exists()
)
HEAVY = ("psycopg", "sqlite3", "sqlalchemy", "rich", "click", "structlog")


def test_imports_go_down_the_drawing_only() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_says_what_it_owns_who_calls_it_and_what_it_never_does(room: Path) -> None:
    said = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert said.startswith("Owns"), said
    assert "Called by" in said
    assert "Never" in said
    assert said.index("Called by") < said.index("Never")


@pytest.mark.parametrize("heavy", HEAVY)
def test_importing_umbel_loads_no_driver_and_no_terminal_library(heavy: str) -> None:
    code = f"import sys, umbel; sys.exit({heavy!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == 0, f"import umbel imports {heavy}"


def test_no_topic_of_a_suite_hides_a_test_of_another() -> None:
    names = [name for topic in (*BROKER_TOPICS, *STORE_TOPICS) for name in vars(topic)]
    tests = [name for name in names if name.startswith("test_")]
    assert len(tests) == len(set(tests))


# --- one way to a terminal -------------------------------------------------------------------

WRITERS = {
    "terminal.py": {"write"},  # the one place
    "cli/deploy_begin.py": {"Live"},  # redraws lines that are visible
    "top/session.py": {"Console", "write"},  # draws lines that are visible
    "cli/confirmation.py": {"confirm"},  # asks a question that is visible
    "cli/dashboard.py": {"prompt"},  # asks for a password with a fixed text
}
"""The files that may write to a terminal by themselves, and how."""


def _ways_to_write(tree: ast.AST) -> set[str]:
    """Calls that write text to a standard stream, or may."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in (
            "rich",
            "rich.console",
            "rich.live",
        ):
            found |= {alias.name for alias in node.names}
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id == "print":
            found.add(node.func.id)
        if isinstance(node.func, ast.Attribute):
            of, name = ast.unparse(node.func.value), node.func.attr
            if of == "click" and name in ("echo", "secho", "confirm", "prompt", "echo_via_pager"):
                found.add(name)
            if name == "write" and of in ("sys.stdout", "sys.stderr", "stream", "spare"):
                found.add(name)
            if of == "logging" and name in ("StreamHandler", "basicConfig"):
                found.add(name)
    return found


def test_all_text_for_a_terminal_goes_through_the_one_writer() -> None:
    package = ROOT / "src" / "umbel"
    for path in package.rglob("*.py"):
        name = path.relative_to(package).as_posix()
        if not name.startswith("testing/"):
            found = _ways_to_write(ast.parse(path.read_text(encoding="utf-8")))
            assert found == WRITERS.get(name, set()), name
