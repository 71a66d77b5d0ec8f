"""The pytest plugin, as pytest loads it from the installed package, in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOP = """
from umbel import Umbel

app = Umbel("postgresql://no-such-host.invalid/shop")

@app.task
def charge(order: int) -> str:
    return f"order {order} paid"
"""

TESTS = """
import pytest
from shop import charge

@pytest.mark.parametrize("order", range(6))
def test_an_order_is_paid(umbel_jobs, order):
    charge.delay(order)
    umbel_jobs.assert_published(charge, order)
    [job] = umbel_jobs.drain()
    assert job.result == f"order {order} paid"
    assert len(umbel_jobs.published) == 1
"""


def run_pytest(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, "."],
        cwd=folder,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    (tmp_path / "test_shop.py").write_text(TESTS, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("address", ["shop:app", "shop"])
def test_the_fixture_tests_the_application_of_the_ini_file(folder: Path, address: str) -> None:
    (folder / "pytest.ini").write_text(f"[pytest]\numbel_app = {address}\n", encoding="utf-8")
    done = run_pytest(folder, "-W", "error")
    assert "6 passed" in done.stdout, done.stdout + done.stderr


def test_the_fixture_works_in_several_processes(folder: Path) -> None:
    pytest.importorskip("xdist")
    done = run_pytest(folder, "-n", "2", UMBEL_APP="shop:app")
    assert "6 passed" in done.stdout, done.stdout + done.stderr


def test_a_fixture_of_the_user_names_the_application(folder: Path) -> None:
    conftest = "import pytest, shop\n@pytest.fixture\ndef umbel_app():\n    return shop.app\n"
    (folder / "conftest.py").write_text(conftest, encoding="utf-8")
    done = run_pytest(folder)
    assert "6 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("", "umbel_jobs: no application is given. Say which application is tested"),
        ("shop:ap", "umbel_app='shop:ap': module 'shop' has no attribute 'ap'. Say which"),
        ("shp:app", "umbel_app='shp:app': No module named 'shp'. Say which"),
        ("shop:charge", "umbel_app='shop:charge' is of type CPUTask, not Umbel. Say which"),
    ],
)
def test_a_wrong_application_is_named_with_the_remedy(
    folder: Path, address: str, reason: str
) -> None:
    done = run_pytest(folder, "-k", "paid and 0", UMBEL_APP=address)
    assert "1 error" in done.stdout
    assert reason in done.stdout
    assert 'umbel_app = "module:app"' in done.stdout


def test_a_failed_test_shows_its_own_line_and_that_of_the_task(folder: Path) -> None:
    tests = "from shop import charge\ndef test_paid(umbel_jobs):\n    charge.delay(0)\n"
    failing = SHOP.replace('return f"order {order} paid"', 'raise ValueError("closed")')
    (folder / "shop.py").write_text(failing.replace("@app.task", "@app.task(retry=0)"), "utf-8")
    (folder / "test_shop.py").write_text(f"{tests}    umbel_jobs.drain()\n", "utf-8")
    (folder / "test_assert.py").write_text(
        f"{tests}    umbel_jobs.assert_published(charge, 1)\n", "utf-8"
    )
    done = run_pytest(folder, UMBEL_APP="shop:app")
    assert "2 failed" in done.stdout
    assert ">       umbel_jobs.drain()" in done.stdout
    assert '>       raise ValueError("closed")' in done.stdout
    assert ">       umbel_jobs.assert_published(charge, 1)" in done.stdout
    assert "inline_" not in done.stdout
    assert "memory.py" not in done.stdout


def test_a_test_run_that_does_not_use_the_fixture_imports_no_application(folder: Path) -> None:
    imported = "import sys\ndef test_imports():\n    assert 'umbel.app' not in sys.modules\n"
    imported += "    assert 'umbel.testing.plugin' in sys.modules\n"
    imported += "    assert not any(name.startswith('umbel.backends') for name in sys.modules)\n"
    (folder / "test_shop.py").write_text(imported, encoding="utf-8")
    done = run_pytest(folder)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
