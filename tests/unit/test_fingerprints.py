"""What changes the word for a task's code, and what does not."""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from umbel.tasks.fingerprints import fingerprint

BASE = {
    "__init__.py": "",
    "tasks.py": """
        import functools
        import os
        from umbel import task
        from . import rates, texts
        from .rates import FACTOR, Rate
        from .texts import WIDTH, clean

        LIMIT = 5
        HOME = os.environ.get("HOME")

        def helper(x):
            "What it does."
            return deeper(x) + LIMIT

        def deeper(x):
            return x * 2

        def traced(function):
            @functools.wraps(function)
            def inner(*args):
                return function(*args)
            return inner

        @task
        def plain(a, b=1):
            "A docstring."
            kinds = {"red", "green", "blue"}
            if a in {"x", "y", "z"}:
                return [n for n in kinds]
            return a + b

        @task
        def with_helper(a):
            return helper(a)

        @task
        def with_values(a):
            return a * FACTOR + Rate().of(a) + rates.tax(a) + (lambda: rates.SHARE)()

        @task
        @traced
        def decorated(a):
            return clean(a)

        @task
        def with_imported(a):
            return a[:WIDTH]

        @task
        def with_environment():
            return HOME

        @task
        async def with_library(a):
            return os.path.join(a, texts.__name__)
    """,
    "rates.py": """
        FACTOR = 3
        SHARE = 0.5

        def tax(x):
            return x * 0.2

        class Rate:
            def of(self, x):
                return x
    """,
    "texts.py": """
        WIDTH = 80

        def clean(text):
            return text.strip()
    """,
}

_numbers = itertools.count()


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """The words of all tasks of the package, with texts in its files replaced."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def read(*changes: tuple[str, str]) -> dict[str, str]:
        package = f"umbel_print_{next(_numbers)}"
        write(tmp_path / package, *changes)
        module = importlib.import_module(f"{package}.tasks")
        names = ("plain", "with_helper", "with_values", "decorated", "with_environment")
        names += ("with_imported",)
        return {n: fingerprint(getattr(module, n)) for n in (*names, "with_library")}

    return read


def write(folder: Path, *changes: tuple[str, str]) -> None:
    folder.mkdir(parents=True)
    left = dict(changes)
    for name, text in BASE.items():
        lines = "\n".join(line[8:] for line in text.splitlines())
        for old, new in changes:
            if old in lines:
                lines = lines.replace(old, new)
                left.pop(old, None)
        (folder / name).write_text(lines)
    assert not left, f"nothing to replace: {left}"


CHANGES = [
    pytest.param(("return a + b", "return a - b"), {"plain"}, id="code"),
    pytest.param(("b=1", "b=2"), {"plain"}, id="default"),
    pytest.param(('"green"', '"violet"'), {"plain"}, id="constant in a set"),
    pytest.param(("return x * 2", "return x * 3"), {"with_helper"}, id="helper of a helper"),
    pytest.param(("LIMIT = 5", "LIMIT = 6"), {"with_helper"}, id="value of the module"),
    pytest.param(("FACTOR = 3", "FACTOR = 4"), {"with_values"}, id="imported value"),
    pytest.param(("WIDTH = 80", "WIDTH = 81"), {"with_imported"}, id="imported value alone"),
    pytest.param(("SHARE = 0.5", "SHARE = 0.6"), {"with_values"}, id="value of another module"),
    pytest.param(("return x * 0.2", "return x * 0.3"), {"with_values"}, id="function by module"),
    pytest.param(("return x\n", "return x + 1\n"), {"with_values"}, id="method"),
    pytest.param(("text.strip()", "text.lower()"), {"decorated"}, id="behind a decorator"),
    pytest.param(('get("HOME")', 'get("PATH")'), {"with_environment"}, id="how it is written"),
    pytest.param(
        ("@task\ndef plain", "@task(interruptible=True)\ndef plain"), {"plain"}, id="option"
    ),
]


@pytest.mark.parametrize(("change", "changed"), CHANGES)
def test_a_change_of_a_tasks_code_changes_its_fingerprint_and_no_other(
    words: Callable[..., dict[str, str]], change: tuple[str, str], changed: set[str]
) -> None:
    before, after = words(), words(change)
    assert {name for name in before if before[name] != after[name]} == changed


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(("LIMIT = 5", "LIMIT = 5  # as ever\n\n\n"), id="lines and comments"),
        pytest.param(("A docstring.", "Another one."), id="docstring"),
        pytest.param(("What it does.", "What it really does."), id="docstring of a helper"),
    ],
)
def test_what_does_nothing_does_not_count(
    words: Callable[..., dict[str, str]], change: tuple[str, str]
) -> None:
    assert words() == words(change)


PRINT = """
import sys
from umbel.tasks import Task
from umbel.tasks.fingerprints import fingerprint
from shop import tasks
for name, value in sorted(vars(tasks).items()):
    if isinstance(value, Task):
        if len(sys.argv) > 1 and value.kind == "cpu":
            for _ in range(50):  # code that ran is specialised, and still the same
                try:
                    value("1")
                except Exception:
                    pass
        print(name, fingerprint(value))
"""


def test_the_fingerprint_is_the_same_in_every_process_and_folder(tmp_path: Path) -> None:
    def said(where: str, seed: str, *more: str) -> str:
        folder = tmp_path / where
        if not folder.exists():
            write(folder / "shop")
        path = os.pathsep.join([str(folder), *sys.path])
        return subprocess.run(
            [sys.executable, "-c", PRINT, *more],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed, "HOME": f"/{where}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    first = said("here", "1")
    assert len(first.splitlines()) == 7
    assert said("here", "2") == first
    assert said("there/and/elsewhere", "3") == first
    assert said("here", "4", "after running") == first
