"""Messages to one worker are signed on one machine without setup: the user's key."""

from __future__ import annotations

import json
import os
import pwd
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: F401 - before a setuid

from integration.command_line import HANG_SECONDS, Running, Shell
from integration.conftest import in_child, working
from umbel import Umbel
from umbel.clock import SystemClock
from umbel.keys import UserKeyFile, user_key_path

NO_KEYS = "any publisher can send commands to this worker, because it has no keys"
NO_SIGNING = "any publisher can send commands to this worker, because it runs with --no-signing"
NOT_SIGNED = "messages to one worker are not signed"
MAKE_KEYS = "to make and share keys, run: umbel keys make"


@pytest.fixture
def shell(shell: Shell, tmp_path: Path) -> Shell:
    shell.env["XDG_DATA_HOME"] = str(tmp_path / "data")
    return shell


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "umbel" / "user.keys"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def stop(running: Running) -> str:
    running.signal(signal.SIGTERM)
    assert running.end() == 0
    return "\n".join(running.lines)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_worker_makes_the_key_and_its_user_can_send_it_commands(
    shell: Shell, key_file: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        with shell.worker() as worker:
            assert (mode(key_file), mode(key_file.parent)) == (0o600, 0o700)
            made = key_file.read_bytes()
            assert shell.ask("workers", "health", "0")["index"] == 0
            said = stop(worker)
    finally:
        os.umask(before)
    assert "signed" not in said
    assert "keys" not in said
    with shell.worker():
        assert shell.ask("workers", "health", "0")["index"] == 0
    assert key_file.read_bytes() == made


def test_a_publisher_makes_the_key_when_it_first_writes_to_one_worker(
    shell: Shell, key_file: Path
) -> None:
    shell.say("send", "add", "1", "2")
    assert not key_file.exists()
    job = shell.say("send", "add", "1", "2", "--worker", "0")
    assert mode(key_file) == 0o600
    with shell.worker() as worker:
        worker.wait_for("succeeded", times=2)
    assert shell.ask("jobs", "show", job)["state"] == "succeeded"


def test_an_unsigned_message_is_refused(shell: Shell) -> None:
    with shell.worker():
        # Without an application, the message is published as it is.
        done = shell.run(
            "send", "tasks.add", "1", "2", "--queue", "worker-0", "--wait", "60", app=None
        )
    assert done.returncode == 1
    assert "it is not signed; give its publisher and this worker the same file" in done.stderr


def test_a_message_of_another_user_is_refused_and_the_remedy_works(
    shell: Shell, tmp_path: Path
) -> None:
    other = {"XDG_DATA_HOME": str(tmp_path / "other")}
    with shell.worker() as worker:
        refused = shell.run("workers", "health", "0", **other)
        assert refused.returncode == 1
        assert "is not trusted here; give its publisher and this worker the same" in refused.stderr
        stop(worker)
    shell.env["UMBEL_KEYS"] = "shared.keys"
    shell.say("keys", "make")
    with shell.worker():
        assert shell.run("workers", "health", "0", **other).returncode == 0


def test_the_key_is_the_same_in_processes_that_make_it_at_the_same_time(
    shell: Shell, key_file: Path
) -> None:
    code = (
        "import os, sys\n"
        "from umbel import Umbel\n"
        "from umbel.clock import SystemClock\n"
        "from umbel.keys import UserKeyFile, user_key_path\n"
        "from cryptography.hazmat.primitives.asymmetric import ed25519\n"
        "fail = sys.exit\n"
        "file = UserKeyFile(user_key_path(os.environ), SystemClock(), fail, fail, fail)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "assert file.open()\n"
        "print(*[key.id for key in file.ring.keys])\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=shell.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(12)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    found = {process.communicate(timeout=HANG_SECONDS)[0] for process in processes}
    assert len(found) == 1, found
    assert found != {""}
    assert os.listdir(key_file.parent) == [key_file.name]


def test_a_folder_that_cannot_be_used_is_a_warning_and_messages_are_accepted(
    shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("a file in place of the folder")
    with shell.worker() as worker:
        told = shell.run("workers", "health", "0")
        assert told.returncode == 0, told.stderr
        said = stop(worker)
    assert said.count(NOT_SIGNED) == 1
    line = json.loads(worker.wait_for(NOT_SIGNED))
    assert line["level"] == "warning"
    assert line["error"] == f"{tmp_path}/data/umbel/user.keys: Not a directory"
    assert "set UMBEL_KEYS to another file" in line["event"]


def test_a_folder_without_permission_is_reported_once() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)

        def open_twice() -> list[str]:
            if os.geteuid() == 0:  # root may write everywhere
                os.setuid(65_534)
            reports: list[str] = []
            path = Path(folder, "umbel", "user.keys")
            file = UserKeyFile(path, SystemClock(), sys.exit, lambda: None, reports.append)
            assert not file.open()
            assert not file.open()
            return reports

        expected = f"{folder}/umbel/user.keys: Permission denied"
        assert in_child(open_twice) == f"+{[expected]}"


def test_a_user_without_a_home_folder_is_told(shell: Shell) -> None:
    # As in a container whose user is not in /etc/passwd.
    code = (
        "import os, pwd\n"
        "def getpwuid(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = getpwuid\n"
        "os.environ.pop('HOME', None)\n"
    )
    (shell.folder / "tasks.py").write_text(code + (shell.folder / "tasks.py").read_text())
    del shell.env["XDG_DATA_HOME"]
    with shell.worker() as worker:
        assert "the user has no home folder" in worker.wait_for(NOT_SIGNED)
    assert not (shell.folder / "~").exists()


def test_without_the_library_one_line_says_what_to_install(shell: Shell, key_file: Path) -> None:
    (shell.folder / "sitecustomize.py").write_text(
        "import sys\nsys.modules['cryptography'] = None\n"
    )
    shell.env["PYTHONPATH"] = str(shell.folder)
    with shell.start("worker", "--processes", "2", "--log-format", "json") as fleet:
        fleet.wait_for("worker started", times=2)
        told = shell.run("workers", "health", "0")
        assert told.returncode == 0, told.stderr
        said = stop(fleet)
    assert said.count(NOT_SIGNED) == 1
    assert f"{NOT_SIGNED}: pip install 'umbel[signing]'" in said
    assert not key_file.exists()


def test_a_file_that_has_no_keys_is_an_error_that_names_it(shell: Shell, key_file: Path) -> None:
    key_file.parent.mkdir(parents=True)
    key_file.write_text("not keys")
    done = shell.run("worker")
    assert done.returncode == 2
    assert f"keys='{key_file}': not a file of keys" in done.stderr


def test_a_database_in_memory_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    app = Umbel("sqlite:///:memory:")
    with working(app):
        app.inbox.health.options(worker=0).delay().get(timeout=HANG_SECONDS)
    app.close()
    assert not (tmp_path / "umbel").exists()


# --- shared servers --------------------------------------------------------------------------


@pytest.fixture
def on_postgres(shell: Shell, new_schema: str) -> Shell:
    shell.env["UMBEL_URL"] = new_schema
    shell.say("db", "migrate")
    return shell


def test_workers_without_keys_say_once_how_to_make_and_share_them(
    on_postgres: Shell, key_file: Path
) -> None:
    shell = on_postgres
    with shell.start("worker", "--processes", "2", "--log-format", "pretty") as fleet:
        fleet.wait_for("worker started", times=2)
        assert shell.ask("workers", "health", "0")["index"] == 0
        said = stop(fleet)
    assert said.count(NO_KEYS) == 1
    assert MAKE_KEYS in fleet.wait_for(NO_KEYS)
    assert not key_file.exists()


def test_with_keys_nothing_is_said_and_unsigned_messages_are_refused(on_postgres: Shell) -> None:
    shell = on_postgres
    shell.env["UMBEL_KEYS"] = "cluster.keys"
    shell.say("keys", "make")
    with shell.worker() as worker:
        assert shell.ask("workers", "health", "0")["index"] == 0
        refused = shell.run("workers", "health", "0", UMBEL_KEYS="")
        assert refused.returncode == 1
        assert "it is not signed" in refused.stderr
        said = stop(worker)
    assert "any publisher" not in said


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_with_no_signing_warns_once_although_it_has_keys(
    on_postgres: Shell, processes: str
) -> None:
    shell = on_postgres
    shell.env["UMBEL_KEYS"] = "cluster.keys"
    shell.say("keys", "make")
    with shell.start("worker", "--no-signing", "--processes", processes) as worker:
        worker.wait_for("worker started", times=int(processes))
        assert shell.run("workers", "health", "0", UMBEL_KEYS="").returncode == 0
        said = stop(worker)
    assert said.count(NO_SIGNING) == 1


# --- the place -------------------------------------------------------------------------------


def test_the_key_is_in_the_data_folder_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/anna")
    assert user_key_path({"XDG_DATA_HOME": "/data"}) == Path("/data/umbel/user.keys")
    for ignored in ({}, {"XDG_DATA_HOME": ""}, {"XDG_DATA_HOME": "relative"}):
        assert user_key_path(ignored) == Path("/home/anna/.local/share/umbel/user.keys")


def test_no_test_uses_the_key_of_the_user_who_runs_it() -> None:
    assert user_key_path(os.environ) != user_key_path({})
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert user_key_path(os.environ).parent != home / ".local" / "share" / "umbel"
