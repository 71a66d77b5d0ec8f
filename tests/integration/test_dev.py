"""``umbel dev`` needs no flags, reloads changed code, and loses no job."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from integration.command_line import Running, Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    del made.env["UMBEL_URL"]
    return made


def change(path: Path, old: str, new: str) -> None:
    """Replace a file in one step and with a new time, as an editor does."""
    text = path.read_text()
    assert old in text
    draft = path.with_suffix(".tmp")
    draft.write_text(text.replace(old, new))
    later = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(draft, ns=(later, later))
    draft.rename(path)


def stop(dev: Running) -> None:
    dev.signal(signal.SIGINT)
    assert dev.end() == 0
    assert not [line for line in dev.lines if "Traceback" in line]


def test_it_needs_no_flags_and_says_what_it_found(shell: Shell) -> None:
    with shell.start("dev", app=None) as dev:
        dev.wait_for("worker started")
        greeting = "\n".join(dev.lines)
        for part in ("tasks.add", "queue mail", "async def", "sqlite:///umbel.db"):
            assert part in greeting
        assert "umbel -A tasks send tasks.add 1 2" in greeting
        assert shell.say("send", "tasks.add", "1", "2", "--wait") == "3"
        dev.wait_for("add started")
        dev.wait_for("add succeeded in")
        stop(dev)
    assert (shell.folder / "umbel.db").exists()


def test_it_serves_a_dashboard_unless_told_not_to(shell: Shell) -> None:
    with shell.start("dev", app=None) as dev:
        dev.wait_for("worker started")
        assert dev.lines[0].startswith("dashboard  http://127.0.0.1:")
        stop(dev)
    with shell.start("dev", "--no-dashboard", app=None) as dev:
        dev.wait_for("worker started")
        assert "dashboard" not in "\n".join(dev.lines)
        stop(dev)


def test_it_prints_how_to_start_a_workflow_and_no_lines_of_other_libraries(shell: Shell) -> None:
    flow = "\n@app.workflow\ndef order(price: int):\n    return add.s(price, 1)\n"
    tasks = shell.folder / "tasks.py"
    tasks.write_text(tasks.read_text() + flow)
    with shell.start("dev", app=None) as dev:
        dev.wait_for("umbel -A tasks workflows start tasks.order 1")
        dev.wait_for("worker started")
        stop(dev)
        assert not [line for line in dev.lines if "logger=" in line]
        (started,) = (line for line in dev.lines if "worker started" in line)
        assert "incarnation=" not in started


def test_a_failing_job_shows_its_traceback(shell: Shell) -> None:
    with shell.start("dev", "--no-reload", app=None) as dev:
        dev.wait_for("worker started")
        shell.say("send", "fail", "no luck")
        dev.wait_for("failed and will be retried")
        dev.wait_for("failed permanently and was buried")
        dev.wait_for("    ValueError: no luck")
        dev.signal(signal.SIGINT)
        assert dev.end() == 0


def test_it_runs_the_new_code_after_a_change(shell: Shell) -> None:
    with shell.start("dev", app=None) as dev:
        dev.wait_for("worker started")
        change(shell.folder / "tasks.py", "return a + b", "return a * b")
        dev.wait_for("reloaded: tasks.py changed")
        dev.wait_for("worker started", times=2)
        assert shell.say("send", "add", "6", "7", "--wait") == "42"
        stop(dev)


def test_a_module_imported_by_the_application_is_watched_too(shell: Shell) -> None:
    package = shell.folder / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "prices.py").write_text("PRICE = 1\n")
    tasks = shell.folder / "tasks.py"
    tasks.write_text("from shop.prices import PRICE\n" + tasks.read_text())
    with shell.start("dev", app=None) as dev:
        dev.wait_for("worker started")
        change(package / "prices.py", "1", "2")
        dev.wait_for(f"reloaded: {Path('shop/prices.py')} changed")
        dev.wait_for("worker started", times=2)
        stop(dev)


def test_code_that_cannot_be_imported_is_shown_and_waited_out(shell: Shell) -> None:
    tasks = shell.folder / "tasks.py"
    with shell.start("dev", app=None) as dev:
        dev.wait_for("worker started")
        change(tasks, "return a + b", "return a +")
        dev.wait_for("SyntaxError")
        dev.wait_for("Waiting for the code to change")
        change(tasks, "return a +", "return a - b")
        dev.wait_for("worker started", times=2)
        assert shell.say("send", "add", "9", "2", "--wait") == "7"
        dev.signal(signal.SIGINT)
        assert dev.end() == 0


def test_a_reload_loses_no_running_job(shell: Shell) -> None:
    marker = shell.folder / "go"
    with shell.start("dev", "--grace", "0", app=None) as dev:
        dev.wait_for("worker started")
        job = shell.say("send", "wait", str(marker))
        dev.wait_for("WAITING")
        change(shell.folder / "tasks.py", 'return "waited"', 'return "waited anew"')
        dev.wait_for("was interrupted and is back in its queue")
        dev.wait_for("WAITING", times=2)
        marker.touch()
        dev.wait_for("wait succeeded")
        stop(dev)
    story = shell.ask("jobs", "show", job)
    assert (story["result"], story["attempt"]) == ("waited anew", 1)


def test_stopping_puts_a_running_job_back(shell: Shell) -> None:
    with shell.start("dev", "--no-reload", "--grace", "600", app=None) as dev:
        dev.wait_for("worker started")
        job = shell.say("send", "wait", str(shell.folder / "never"))
        dev.wait_for("WAITING")
        dev.signal(signal.SIGINT)
        dev.wait_for("fetches no more jobs")
        dev.signal(signal.SIGINT)
        assert dev.end() == 0
    assert shell.ask("jobs", "show", job)["state"] == "queued"


def test_without_an_application_it_says_how_to_begin(shell: Shell) -> None:
    (shell.folder / "tasks.py").unlink()
    done = shell.run("dev", app=None)
    assert done.returncode == 2
    assert "@app.task" in done.stderr


def test_a_module_that_makes_no_application_is_not_even_imported(shell: Shell) -> None:
    (shell.folder / "tasks.py").rename(shell.folder / "main.py")
    (shell.folder / "app.py").write_text("raise SystemExit('not meant')\n")
    with shell.start("dev", app=None) as dev:
        dev.wait_for("main.add")
        dev.wait_for("worker started")
        stop(dev)


def test_json_lines_for_programs(shell: Shell) -> None:
    with shell.start("dev", "--json", app=None) as dev:
        found = json.loads(dev.wait_for('"dev"'))
        assert found["tasks"][0]["name"] == "tasks.add"
        dev.wait_for("worker started")
        stop(dev)
        assert all(json.loads(line) for line in dev.lines)


# --- the schema ------------------------------------------------------------------------------


@pytest.fixture
def on_postgres(shell: Shell, new_schema: str) -> Shell:
    shell.env["UMBEL_URL"] = new_schema
    return shell


def test_it_creates_a_schema_that_is_missing_and_says_so_once(on_postgres: Shell) -> None:
    shell = on_postgres
    with shell.start("dev", app=None) as dev:
        dev.wait_for("worker started")
        assert shell.say("send", "add", "1", "2", "--wait") == "3"
        stop(dev)
    assert sum("the database schema was created    version=1" in line for line in dev.lines) == 1
    with shell.start("dev", app=None) as again:
        again.wait_for("worker started")
        stop(again)
    assert not [line for line in again.lines if "schema was" in line]


NEXT_MIGRATION = """
from umbel.backends.postgres import schema

released = schema.migrations()
schema.migrations = lambda: [*released, (2, "create table $schema.later (id integer)")]
"""


def test_it_upgrades_an_older_schema_and_says_so(on_postgres: Shell) -> None:
    shell = on_postgres
    assert shell.say("db", "migrate") == "Applied 1. The schema is at version 1."
    tasks = shell.folder / "tasks.py"
    tasks.write_text(NEXT_MIGRATION + tasks.read_text())
    assert "is at version 1; this Umbel needs 2" in shell.run("db", "status").stdout
    with shell.start("dev", app=None) as dev:
        dev.wait_for("the database schema was upgraded   before=1 version=2")
        dev.wait_for("worker started")
        assert shell.say("send", "add", "1", "2", "--wait") == "3"
        stop(dev)


def test_a_schema_of_a_newer_umbel_is_not_touched(on_postgres: Shell) -> None:
    shell = on_postgres
    tasks = shell.folder / "tasks.py"
    released = tasks.read_text()
    tasks.write_text(NEXT_MIGRATION + released)
    shell.say("db", "migrate")
    tasks.write_text(released)
    done = shell.run("dev", app=None)
    assert done.returncode != 0
    assert "has version 2, this Umbel knows 1; upgrade it" in done.stderr
