"""Every example runs, in real processes, and prints what its .out file says."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
import zlib
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


def test_the_media_example_survives_the_death_of_its_worker(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(EXAMPLES),
        "UMBEL_URL": f"sqlite:///{tmp_path}/example.db",
    }
    command = [sys.executable, "-m", "umbel", "-A", "09_media", "worker", "--grace", "0"]
    started: list[subprocess.Popen[str]] = []

    def start(command: list[str], output: Path) -> subprocess.Popen[str]:
        with output.open("w") as file:
            process = subprocess.Popen(
                command, env=environment, cwd=tmp_path, stdout=file, stderr=file, text=True
            )
        started.append(process)
        return process

    try:
        first = start([*command, "--cpu", "1", "--lease", "1"], tmp_path / "first.log")
        caller = start([sys.executable, str(EXAMPLES / "09_media.py")], tmp_path / "printed")
        until = time.monotonic() + 60
        while not list(tmp_path.glob("media/*.part")):
            assert time.monotonic() < until, (tmp_path / "first.log").read_text()
            time.sleep(0.01)
        first.kill()
        first.wait(timeout=30)
        assert not (tmp_path / "media/harbour.film").exists(), "it was not killed in the middle"
        start([*command, "--lease", "1"], tmp_path / "second.log")
        caller.wait(timeout=90)
    finally:
        for process in started:
            process.kill()
            process.wait(timeout=30)
    assert (tmp_path / "printed").read_text() == (EXAMPLES / "09_media.out").read_text()
    films = {film.stem: zlib.crc32(film.read_bytes()) for film in tmp_path.glob("media/*.film")}
    printed = (tmp_path / "printed").read_text()
    assert len(films) == 3
    assert all(f"checksum {checksum:08x}" in printed for checksum in films.values())


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
