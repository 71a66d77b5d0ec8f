"""Every example runs, in real processes, and prints what its .out file says."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from umbel import Umbel

EXAMPLES = Path(__file__).parents[2] / "examples"
POSTGRES = os.environ.get("UMBEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
NEEDS_POSTGRES = {"04_transactions"}
NEEDS_NO_WORKER = {"06_stop_in_the_middle", "07_tests"}
NAMES = sorted(path.stem for path in EXAMPLES.glob("[0-9]*.py"))


@pytest.fixture
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    name: str = request.getfixturevalue("name")
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    if name not in NEEDS_POSTGRES:
        yield {**environment, "UMBEL_URL": f"sqlite:///{tmp_path}/example.db"}
        return
    psycopg = pytest.importorskip("psycopg")
    schema = f"umbel_example_{uuid.uuid4().hex[:8]}"
    try:
        connection = psycopg.connect(POSTGRES, autocommit=True, connect_timeout=2)
    except psycopg.OperationalError as error:
        pytest.skip(f"not run: PostgreSQL does not answer ({error})")
    url = f"{POSTGRES}?schema={schema}"
    asyncio.run(Umbel(url).backend.migrate())
    yield {**environment, "UMBEL_URL": url}
    connection.execute(f"drop schema {schema} cascade")
    connection.close()


@pytest.mark.parametrize("name", NAMES)
def test_an_example_prints_what_it_promises(
    name: str, environment: dict[str, str], tmp_path: Path
) -> None:
    worker = None
    if name not in NEEDS_NO_WORKER:
        worker = subprocess.Popen(
            [sys.executable, "-m", "umbel", "-A", name, "worker", "--grace", "0"],
            env=environment,
            cwd=tmp_path,
            stdout=(tmp_path / "worker.log").open("w"),
            stderr=subprocess.STDOUT,
        )
    try:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / f"{name}.py")],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
    finally:
        if worker is not None:
            worker.terminate()
            worker.wait(timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (EXAMPLES / f"{name}.out").read_text()


def test_the_example_with_tests_passes_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLES / "07_tests.py"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
