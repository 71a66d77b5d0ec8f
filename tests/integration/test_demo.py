"""``make run`` shows what it promises, and the Makefile describes and cleans up its commands."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from integration.command_line import HANG_SECONDS, Running
from integration.running import until

ROOT = Path(__file__).resolve().parents[2]
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.mark.slow
def test_the_demo_shows_a_retry_a_limit_and_a_killed_worker(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "examples/demo/start.py")],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    demo = Running(process)
    try:
        demo.wait_for("charge_card    succeeded in", times=2)
        _run_the_commands_of_the_banner(demo, tmp_path)
        demo.wait_for("count_stock    succeeded", times=3)
        demo.wait_for("reorder_stock  succeeded")
        demo.wait_for("a worker process died and is restarted")
        demo.wait_for("print_invoice  succeeded")
        os.killpg(process.pid, signal.SIGINT)
        assert demo.end() == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    text = "\n".join(demo.lines)
    assert "(attempt 2)" in text
    assert "not signed" not in text
    assert "an interruptible task publishes" not in " ".join(text.split())
    commands = _commands(demo)  # their paths are as long as the folder of the test
    assert [line for line in demo.lines if len(line) > 80 and line not in commands] == []
    before_crash = text.partition("print_invoice  started")[0]
    counted = re.findall(r"^[\d:]+ count_stock +(\w+)", before_crash, re.MULTILINE)
    assert counted == (["started", "succeeded"] * 3)[: len(counted)]


@pytest.mark.slow
def test_the_demo_names_its_dashboard_first_and_shows_everything_there(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "examples/demo/start.py")],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    demo = Running(process)
    missing = {
        *("a success", "a retry", "a buried job", "a limit with jobs waiting", "a schedule"),
        *("a deployment", "go"),
    }
    try:
        demo.wait_for("Dashboard: ")
        assert demo.lines[0].startswith("Dashboard: ")
        url = demo.lines[0].split()[1]
        demo.wait_for("worker started")
        with httpx.Client(base_url=f"{url}api/v1/", timeout=30) as http:

            def look() -> bool:
                with suppress(httpx.TransportError):  # it starts
                    missing.difference_update(_shown_by(http))
                return not missing

            until(look, "the rest on the dashboard")
        os.killpg(process.pid, signal.SIGINT)
        assert demo.end() == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _shown_by(http: httpx.Client) -> Iterator[str]:
    """Return what the pages of the dashboard show now."""
    if http.get("jobs?state=succeeded").json()["jobs"]:
        yield "a success"
    charged = http.get("jobs?task=examples.demo.tasks.charge_card").json()["jobs"]
    if any(job["attempt"] > 1 for job in charged):
        yield "a retry"
    if http.get("buried").json()["groups"]:
        yield "a buried job"
    if any(gate["waiting"] and gate["held"] for gate in http.get("gates").json()["gates"]):
        yield "a limit with jobs waiting"
    if any(one["published"] for one in http.get("schedules").json()["schedules"]):
        yield "a schedule"
    deployments = http.get("deployments").json()
    if deployments["is_under_way"]:
        yield "a deployment"
        if deployments["deployment"]["state"] == "go":
            yield "go"


@pytest.mark.slow
def test_the_demo_creates_the_schema_of_the_database_in_its_environment(
    tmp_path: Path, new_schema: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "examples/demo/start.py")],
        cwd=tmp_path,
        env=os.environ | {"UMBEL_URL": new_schema},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    demo = Running(process)
    try:
        demo.wait_for(f"Two workers on {new_schema}.")
        demo.wait_for("charge_card    succeeded in")
        os.killpg(process.pid, signal.SIGINT)
        assert demo.end() == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert not (tmp_path / "umbel-demo.db").exists()


def _commands(demo: Running) -> list[str]:
    return [line for line in demo.lines if line.startswith("  ") and not line.startswith("   ")]


def _run_the_commands_of_the_banner(demo: Running, folder: Path) -> None:
    first, *commands = _commands(demo)
    assert "PYTHONPATH" in first
    assert len(commands) == 4
    for command in commands:
        done = subprocess.run(
            f"{first}\n{command}",
            shell=True,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@needs_make
def test_help_lists_every_target_of_the_makefile() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert targets is not None
    done = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    listed = {line.split()[0]: line.split(maxsplit=1)[1] for line in done.stdout.splitlines()}
    assert set(listed) == set(targets[1].split())


@needs_make
def test_clean_removes_databases_and_caches_and_nothing_else(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    made = ["umbel.db", "umbel-demo.db", "umbel-demo.db-wal", ".mypy_cache/x", "site/index.html"]
    made += [".import_linter_cache/x", "src/umbel.egg-info/x", "tests/unit/__pycache__/x.pyc"]
    kept = ["src/umbel/app.py", "examples/demo/tasks.py", "docs/index.md", "benchmarks/x.py"]
    for name in [*made, *kept]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, check=True)
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert left == {"Makefile", *kept}
