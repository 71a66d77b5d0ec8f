"""Queues that no worker serves, and queues that no task uses: the command line says so."""

from __future__ import annotations

import json
import signal

from integration.command_line import Shell

UNSERVED = "No running worker serves the queue mail. Start one: umbel -A tasks worker --queues mail"


def test_send_and_wait_says_that_no_worker_serves_the_queue_and_continues_to_wait(
    shell: Shell,
) -> None:
    with shell.worker("--queues", "default"):
        with shell.start("send", "greet", "Ann", "--wait") as sent:
            sent.wait_for(UNSERVED)
            with shell.worker("--queues", "mail"):
                assert sent.end() == 0
        assert sent.lines[-1] == '"hello Ann"'
        assert sum(UNSERVED in line for line in sent.lines) == 1


def test_send_and_wait_says_so_without_any_worker_and_ends_in_time(shell: Shell) -> None:
    done = shell.run("send", "greet", "Ann", "--wait", "1.5")
    assert done.returncode == 1
    assert UNSERVED in done.stderr
    assert "has not finished within 1.5 s" in done.stderr
    assert done.stdout == ""


def test_send_and_wait_names_the_pause_for_which_the_job_does_not_start(shell: Shell) -> None:
    with shell.worker():
        shell.say("pause", "mail", "--reason", "repairs")
        with shell.start("send", "greet", "Ann", "--wait") as sent:
            sent.wait_for("The queue mail is paused by an operator (repairs).")
            shell.say("resume", "mail")
            assert sent.end() == 0


def test_a_job_that_runs_for_long_has_no_note(shell: Shell) -> None:
    with shell.worker():
        done = shell.run("send", "wait", str(shell.folder / "never"), "--wait", "2")
    assert done.returncode == 1
    assert "No running worker" not in done.stderr


def test_with_json_there_is_no_note(shell: Shell) -> None:
    done = shell.run("send", "greet", "Ann", "--wait", "1.5", "--json")
    assert json.loads(done.stderr)["error"]["type"] == "ResultTimeout"


def test_a_worker_warns_once_of_a_queue_that_no_task_uses(shell: Shell) -> None:
    text = "no task uses the queue nope; the queues of the tasks are default, mail"
    with shell.worker("--queues", "nope,mail") as worker:
        worker.signal(signal.SIGTERM)
        worker.end()
    assert sum(text in line for line in worker.lines) == 1
    assert sum("no task uses" in line for line in worker.lines) == 1


def test_a_fleet_warns_once(shell: Shell) -> None:
    with shell.start("worker", "--queues", "nope", "--processes", "2") as fleet:
        fleet.wait_for("worker started", times=2)
        fleet.signal(signal.SIGTERM)
        fleet.end()
    assert sum("no task uses the queue nope" in line for line in fleet.lines) == 1
