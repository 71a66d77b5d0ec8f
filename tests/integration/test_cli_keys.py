"""``umbel keys`` and messages to one worker, in real processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from integration.command_line import Shell, wait_until
from umbel.processes.fleet import child_command

TASKS = """
import time
from umbel import Umbel, current

app = Umbel()
VERSION = 1


@app.task
def version() -> int:
    return VERSION


@app.task
def nap() -> None:
    time.sleep(4)


@app.task
def long() -> None:
    while True:
        current.checkpoint()
        time.sleep(0.05)
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    (tmp_path / "tasks.py").write_text(TASKS)
    shell.env["UMBEL_KEYS"] = "cluster.keys"
    return shell


def test_keys_are_made_rotated_revoked_and_exported(shell: Shell) -> None:
    assert "umbel keys make" in shell.run("keys").stderr
    assert "UMBEL_KEYS=cluster.keys" in shell.say("keys", "make")
    again = shell.run("keys", "make")
    assert (again.returncode, "exists already" in again.stderr) == (1, True)
    (first,) = shell.ask("keys")
    assert (first["state"], first["private"], first["until"]) == ("signs", True, None)
    assert "signs in 1 h" in shell.say("keys", "rotate")
    assert [key["state"] for key in shell.ask("keys", "list")] == ["signs", "next"]
    shell.say("keys", "rotate", "--after", "0", "--overlap", "60")
    states = {key["key"]: key["state"] for key in shell.ask("keys")}
    assert (states[first["key"]], list(states.values())[-1]) == ("trusted", "signs")
    assert "1 public key" not in shell.say("keys", "export", "public.keys")
    assert not any(key["private"] for key in shell.ask("keys", "--file", "public.keys"))
    assert "is not trusted any more" in shell.say("keys", "revoke", first["key"][:6])
    assert first["key"] not in shell.say("keys")
    nobody = shell.run("keys", "revoke", "zzz")
    assert (nobody.returncode, "is none of the keys" in nobody.stderr) == (1, True)
    os.chmod(shell.folder / "cluster.keys", 0o644)
    assert "chmod 600 cluster.keys" in shell.say("keys")


def test_one_worker_is_controlled_by_its_name_or_index(shell: Shell) -> None:
    shell.say("keys", "make")
    with shell.worker("--name", "anna"):
        job = shell.say("send", "long")
        wait_until(lambda: [one["id"] for one in _health(shell)["jobs"]] == [job])
        told = shell.say("workers", "health", "anna")
        assert "worker 0 (anna), working" in told
        shown = next(word for word in told.split() if job.endswith(word) and len(word) >= 8)
        assert shell.ask("jobs", "show", shown)["id"] == job
        assert "asked to stop" in shell.say("workers", "cancel", "anna", job, "--reason", "enough")
        wait_until(lambda: shell.ask("jobs", "show", job)["state"] == "cancelled")
        gone = shell.run("workers", "cancel", "anna", job)
        assert (gone.returncode, "is not running on worker anna" in gone.stderr) == (1, True)
        stranger = shell.run("workers", "health", "0", UMBEL_KEYS="")
        assert (stranger.returncode, "rejected the command: " in stranger.stderr) == (1, True)
        assert "is not trusted here; give its publisher and this worker" in stranger.stderr
        assert "resume --worker 0" in shell.say("workers", "pause", "0")
        wait_until(lambda: shell.ask("workers")[0]["state"] == "paused")
        silent = shell.run("workers", "health", "0", "--wait", "1")
        assert (silent.returncode, "did not answer within 1 s" in silent.stderr) == (1, True)
        assert "worker anna resumed" in shell.say("resume", "--worker", "0")
        assert "worker anna paused" in shell.say("pause", "--worker", "anna")
        assert "worker anna resumed" in shell.say("resume", "--worker", "anna")
        wait_until(lambda: not _health(shell)["paused"])
        wrong = shell.run("pause", "--worker", "bob")
        assert (wrong.returncode, "known workers: anna" in wrong.stderr) == (2, True)


@pytest.mark.parametrize("how", ["command", "signal"])
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_begins_again_with_new_code(shell: Shell, how: str, processes: str) -> None:
    shell.say("keys", "make")
    with shell.worker("--name", "anna", "--processes", processes) as worker:
        wait_until(lambda: len(shell.ask("workers")) == int(processes))
        before = {one["index"]: one for one in shell.ask("workers")}
        assert shell.ask("send", "version", "--worker", "0", "--wait", "60")["result"] == 1
        (shell.folder / "tasks.py").write_text(TASKS.replace("VERSION = 1", "VERSION = 2"))
        if how == "signal":
            worker.process.send_signal(signal.SIGHUP)
        else:
            assert "then it restarts" in shell.say("workers", "reload", "0")
        wait_until(lambda: _other_life(shell, before))
        after = {one["index"]: one for one in shell.ask("workers")}
        assert after[0]["pid"] == before[0]["pid"], "the same process, with other code"
        assert shell.ask("send", "version", "--worker", "0", "--wait", "60")["result"] == 2
        worker.process.terminate()
        assert worker.process.wait(60) == 0


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_stopped_during_a_reload_stops_and_finishes_its_running_tasks(
    shell: Shell, processes: str
) -> None:
    shell.env.pop("UMBEL_KEYS")
    with shell.worker("--processes", processes) as worker:
        wait_until(lambda: len(shell.ask("workers")) == int(processes))
        job = shell.say("send", "nap")
        wait_until(lambda: shell.ask("jobs", "show", job)["state"] == "running")
        worker.process.send_signal(signal.SIGHUP)
        worker.wait_for("stopping: it fetches no more jobs", times=int(processes))
        worker.process.send_signal(signal.SIGHUP)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(60) == 0
        found = shell.ask("jobs", "show", job)
        assert (found["state"], found["attempt"]) == ("succeeded", 1)


LATE = """

def said(number):
    os.kill(os.getpid(), number)


if os.environ.pop("SAY_IT_ONCE_MORE", ""):
    said(signal.SIGHUP)  # while it starts


async def last_words():
    try:
        yield
    finally:  # when the loop is closed
        if os.environ["LAST_WORD"] == "stop":
            said(signal.SIGTERM)
        else:
            os.environ["LAST_WORD"] = "stop"
            os.environ["SAY_IT_ONCE_MORE"] = "yes"


@app.service
async def speaker():
    global words
    words = last_words()
    await anext(words)
    await asyncio.Event().wait()
"""


@pytest.mark.parametrize("options", [(), ("--no-uvloop",)])
@pytest.mark.parametrize(("word", "lives"), [("stop", 1), ("again", 2)])
def test_a_request_made_just_before_the_restart_is_noticed(
    shell: Shell, word: str, lives: int, options: tuple[str, ...]
) -> None:
    shell.env.pop("UMBEL_KEYS")
    shell.env["LAST_WORD"] = word
    imports = "import asyncio, os, signal\n"
    (shell.folder / "tasks.py").write_text(imports + TASKS + LATE)
    with shell.worker(*options) as worker:
        worker.process.send_signal(signal.SIGHUP)
        assert worker.end() == 0
        assert sum("worker started" in line for line in worker.lines) == lives, worker.lines


def test_a_fleets_children_get_all_options_of_the_parent() -> None:
    chosen: dict[str, Any] = {
        "order": "weighted",
        "weights": "mail=5",
        "no_inbox": True,
        "no_signing": True,
        "grace": 5.0,
    }
    words = child_command("tasks", "anna", 1, 2, style="json", level="info", options=chosen)
    for word in ("--order=weighted", "--weights=mail=5", "--no-inbox", "--no-signing"):
        assert word in words


def _health(shell: Shell) -> Any:
    return shell.ask("workers", "health", "0")


def _other_life(shell: Shell, before: dict[int, Any]) -> bool:
    now = {one["index"]: one["incarnation"] for one in shell.ask("workers")}
    return 0 in now and now[0] != before[0]["incarnation"]
