"""Flags of ``umbel worker`` that are given in the environment, and their short forms."""

from __future__ import annotations

import signal

import pytest

from integration.command_line import Shell, wait_until


def test_the_environment_sets_the_flags_of_a_worker(shell: Shell) -> None:
    shell.env |= {
        "UMBEL_WORKER_QUEUES": "mail",
        "UMBEL_WORKER_NAME": "box",
        "UMBEL_WORKER_IO": "7",
        "UMBEL_WORKER_CPU": "3",
        "UMBEL_WORKER_GRACE": "600",
        "UMBEL_WORKER_NO_INBOX": "yes",
        "UMBEL_WORKER_LEASE": "",
        "UMBEL_LOG_FORMAT": "json",
    }
    with shell.start("worker") as worker:
        started = worker.wait_for('"event":"worker started"')
        assert '"worker":"box"' in started
        (seen,) = shell.ask("workers")
        assert (seen["name"], seen["queues"], seen["io"], seen["cpu"]) == ("box", ["mail"], 7, 3)
        marker = shell.folder / "marker"
        shell.say("send", "wait", str(marker), "--queue", "mail")
        worker.wait_for("WAITING")
        worker.signal(signal.SIGTERM)
        assert '"grace":600' in worker.wait_for("is stopping")
        marker.touch()
        assert worker.end() == 0


def test_a_flag_takes_precedence_over_its_variable(shell: Shell) -> None:
    shell.env |= {"UMBEL_WORKER_QUEUES": "mail", "UMBEL_WORKER_CPU": "3"}
    with shell.worker("-Q", "default,mail", "-c", "5"):
        (seen,) = shell.ask("workers")
        assert (sorted(seen["queues"]), seen["cpu"]) == (["default", "mail"], 5)


def test_the_environment_sets_the_number_of_processes_of_the_parent_alone(shell: Shell) -> None:
    shell.env |= {"UMBEL_WORKER_PROCESSES": "2", "UMBEL_WORKER_NAME": "box"}
    with shell.worker() as fleet:
        fleet.wait_for("worker started", times=2)
        wait_until(lambda: len(shell.ask("workers")) == 2)
        assert sorted(one["name"] for one in shell.ask("workers")) == ["box.0", "box.1"]
        fleet.signal(signal.SIGTERM)
        assert fleet.end() == 0


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("UMBEL_WORKER_IO", "many"),
        ("UMBEL_WORKER_PROCESSES", "0"),
        ("UMBEL_WORKER_PROBE", "here"),
        ("UMBEL_WORKER_NO_INBOX", "perhaps"),
        ("UMBEL_LOG_LEVEL", "loud"),
    ],
)
def test_a_wrong_variable_is_named(shell: Shell, variable: str, value: str) -> None:
    done = shell.run("worker", **{variable: value})
    assert done.returncode == 2
    assert variable in done.stderr
    assert value in done.stderr


def test_the_help_names_the_variables_and_the_short_flags(shell: Shell) -> None:
    text = " ".join(shell.say("worker", "--help").split())
    for expected in ("-Q, --queues", "-c, --cpu", "env var: UMBEL_WORKER_QUEUES"):
        assert expected in text
