"""``umbel purge-namespace``, and ``umbel jobs purge`` for the jobs of one key or argument."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from integration.command_line import HANG_SECONDS, Running, Shell, wait_until
from umbel import Umbel
from umbel.errors import NotAllowed
from umbel.testing.actions import worker

KEYED = """
import asyncio, os
from umbel import Retry, Umbel

app = Umbel()

@app.task(affinity="user", retry=Retry(0))
def visit(user: str, fails: bool = False) -> str:
    if fails:
        raise ValueError(user)
    return user

@app.task
async def wait(user: str) -> None:
    print("WAITING", flush=True)
    await asyncio.sleep(3600)
"""


def stop(worker: Running) -> None:
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0


def ids_of(shell: Shell, *filters: str) -> set[str]:
    return {job["id"] for job in shell.ask("jobs", "list", *filters)}


# --- a namespace -----------------------------------------------------------------------------


def test_a_namespace_is_deleted_and_others_are_kept(shell: Shell) -> None:
    kept = shell.say("send", "add", "1", "2")
    for _ in range(3):
        assert shell.run("send", "add", "1", "2", UMBEL_NAMESPACE="old").returncode == 0
    shown = shell.run("purge-namespace", "old", "--dry-run")
    assert shown.stdout.splitlines() == ["stored  rows", "job        3"]
    assert shell.ask("purge-namespace", "old", "--dry-run")["stored"] == {"job": 3}
    assert shell.say("purge-namespace", "old", "--yes").endswith("namespace old: 3 rows deleted")
    assert "has nothing of the namespace old" in shell.say("purge-namespace", "old", "--dry-run")
    assert shell.ask("purge-namespace", "old", "--yes")["deleted"] == 0, "it may be repeated"
    assert ids_of(shell) == {kept}


def test_a_namespace_with_running_workers_is_refused(shell: Shell) -> None:
    with shell.worker("--name", "anna") as worker:
        refused = shell.run("purge-namespace", "umbel", "--yes")
        assert refused.returncode == 1
        assert "workers of the namespace umbel are running: anna. Stop them" in refused.stderr
        assert shell.run("purge-namespace", "umbel", "--dry-run").returncode == 0
        assert shell.say("workers").splitlines()[1].startswith("anna")
        stop(worker)
    shell.say("send", "add", "1", "2")
    with shell.worker("--queues", "other"):
        forced = shell.run("purge-namespace", "umbel", "--yes", "--force")
        assert "rows deleted" in forced.stdout
        assert "Restart workers that are running" in forced.stderr
    assert ids_of(shell) == set()


def test_operations_delete_no_namespace_with_running_workers(tmp_path: Path) -> None:
    app = Umbel(f"sqlite:///{tmp_path}/umbel.db")

    async def scenario() -> None:
        roles, operations = app.backend.open(), app.operations()
        try:
            await roles.registry.register(worker("anna"))
            with pytest.raises(NotAllowed, match="are running: anna"):
                await operations.erase()
            deleted: list[int] = []
            assert await operations.erase(force=True, progress=deleted.append) > 0
            assert deleted
            assert await operations.stored() == {}
        finally:
            await operations.close()
            await roles.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("typed", "code", "said"), [("umbel", 0, "deleted"), ("yes", 2, "is not")])
def test_the_name_is_typed_to_confirm(shell: Shell, typed: str, code: int, said: str) -> None:
    job = shell.say("send", "add", "1", "2")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "umbel", "-A", "tasks", "purge-namespace", "umbel"],
        cwd=shell.folder,
        env=shell.env,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    os.close(theirs)
    os.write(ours, f"{typed}\n".encode())
    output, _ = process.communicate(timeout=HANG_SECONDS)
    os.close(ours)
    assert process.returncode == code
    assert "Delete the namespace umbel, 1 row? Type umbel to confirm" in output
    assert said in output
    assert ids_of(shell) == (set() if code == 0 else {job})


def test_without_a_terminal_a_namespace_is_deleted_only_with_yes(shell: Shell) -> None:
    job = shell.say("send", "add", "1", "2")
    refused = shell.run("purge-namespace", "umbel")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    wrong = shell.run("purge-namespace", "not a name", "--yes")
    assert wrong.returncode == 2
    assert "namespace='not a name': give 1 to 63 letters" in wrong.stderr
    assert ids_of(shell) == {job}


# --- jobs of one key -------------------------------------------------------------------------


def test_all_jobs_of_an_argument_are_deleted(shell: Shell) -> None:
    with shell.worker() as worker:
        for name in ("Ann", "Bob"):
            shell.say("send", "greet", name, "--wait")
            shell.say("send", "fail", f"no {name}")
        wait_until(lambda: all(job["finished"] for job in shell.ask("jobs", "list")))
        stop(worker)
    waiting = shell.say("send", "greet", "Ann")
    kept = ids_of(shell, "--argument", "Bob")
    assert len(kept) == 2
    assert shell.say("jobs", "purge", "--argument", "name=Ann", "--yes") == "1 job deleted"
    assert waiting in ids_of(shell), "live jobs are kept without --all"
    assert shell.say("jobs", "purge", "--argument", "Ann", "--all", "--yes") == "2 jobs deleted"
    assert ids_of(shell) == kept
    assert shell.say("jobs", "purge", "--argument", "Ann", "--all", "--yes") == "0 jobs deleted"


def test_all_jobs_of_a_key_are_deleted(shell: Shell) -> None:
    (shell.folder / "tasks.py").write_text(KEYED)
    with shell.worker() as worker:
        for words in (("visit", "ann"), ("visit", "bob"), ("visit", "ann", "fails=true")):
            shell.say("send", *words)
        wait_until(lambda: all(job["finished"] for job in shell.ask("jobs", "list")))
        stop(worker)
    shell.say("send", "visit", "ann")
    unique = shell.say("send", "visit", "cay", "--unique", "letter")
    bob = ids_of(shell, "--key", "bob")
    assert (len(bob), len(ids_of(shell, "--key", "ann"))) == (1, 3)
    assert ids_of(shell, "--key", "letter") == {unique} == ids_of(shell, "--key", "cay")
    assert shell.say("jobs", "purge", "--key", "ann", "--all", "--yes") == "3 jobs deleted"
    assert shell.say("jobs", "purge", "--key", "letter", "--all", "--yes") == "1 job deleted"
    assert ids_of(shell) == bob


def test_a_running_job_is_stopped_and_deleted_by_the_next_command(shell: Shell) -> None:
    (shell.folder / "tasks.py").write_text(KEYED)
    purge = ("jobs", "purge", "--argument", "user=ann", "--all", "--yes")
    with shell.worker() as worker:
        job = shell.say("send", "wait", "ann")
        worker.wait_for("WAITING")
        first = shell.run(*purge)
        assert first.returncode == 1
        assert "1 running job was asked to stop; repeat the command when it has" in first.stdout
        wait_until(lambda: shell.ask("jobs", "show", job)["state"] == "cancelled")
        assert shell.say(*purge) == "1 job deleted"
        assert ids_of(shell) == set()


def test_all_and_a_state_contradict_each_other(shell: Shell) -> None:
    refused = shell.run("jobs", "purge", "--all", "--state", "buried", "--yes")
    assert refused.returncode == 2
    assert "give --all or --state, not both" in refused.stderr
