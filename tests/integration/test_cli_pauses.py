"""Pauses on the command line: every command that shows waiting jobs says what is paused."""

from __future__ import annotations

import pytest

from integration.command_line import Shell


def test_queues_shows_which_queues_are_paused_by_whom_and_why(shell: Shell) -> None:
    shell.say("send", "greet", "Ann")
    shell.say("send", "add", "1", "2")
    shell.say("pause", "mail", "--reason", "provider is down")
    shell.say("pause", "--task", "add")
    lines = shell.say("queues").splitlines()
    assert lines[1].split()[0] == "default"
    assert lines[1].endswith("no worker")
    assert lines[2].endswith("no worker, paused")
    assert lines[3].startswith("queue mail paused for ")
    assert lines[3].endswith(" by an operator: provider is down")
    assert lines[4].startswith("task tasks.add paused for ")
    default, mail = shell.ask("queues")
    assert (default["paused"], default["pauses"]) == (False, [])
    assert (mail["paused"], mail["pauses"][0]["reason"]) == (True, "provider is down")


def test_queues_tells_a_pause_of_everything_from_a_pause_of_the_queue(shell: Shell) -> None:
    shell.say("send", "greet", "Ann")
    shell.say("pause", "--queue", "mail")
    shell.say("pause", "--yes", "--reason", "moving")
    text = shell.say("queues")
    assert "no worker, all paused, paused" in text
    assert "everything paused for " in text
    assert [one["scope"] for one in shell.ask("queues")[0]["pauses"]] == ["all", "queue"]


def test_health_names_the_pauses_and_stays_healthy(shell: Shell) -> None:
    with shell.worker():
        assert "pauses   none" in shell.say("health")
        shell.say("pause", "mail", "--reason", "provider is down")
        text = shell.say("health")
        assert text.startswith("healthy, with 1 pause\n")
        assert "pauses   paused: queue mail" in text
        found = shell.ask("health")
    assert found["ok"] is True
    (pause,) = found["pauses"]
    assert (pause["scope"], pause["name"], pause["reason"]) == ("queue", "mail", "provider is down")


@pytest.mark.parametrize(
    ("words", "subject", "resume"),
    [
        (("--queue", "mail"), "The queue mail", "umbel resume --queue mail"),
        (("--task", "greet"), "The task tasks.greet", "umbel resume --task tasks.greet"),
        (("--yes",), "Everything", "umbel resume"),
    ],
    ids=["queue", "task", "all"],
)
def test_a_waiting_job_says_which_pause_it_waits_for_and_how_to_resume(
    shell: Shell, words: tuple[str, ...], subject: str, resume: str
) -> None:
    with shell.worker() as worker:
        shell.say("pause", *words, "--reason", "repairs")
        job = shell.say("send", "greet", "Ann")
        expected = f"{subject} is paused by an operator (repairs). Resume it: {resume}"
        assert shell.ask("jobs", "show", job)["hindrances"] == [expected]
        assert expected in shell.say("jobs", "show", job)
        shell.say(*resume.split()[1:])
        worker.wait_for("succeeded")
        assert shell.ask("jobs", "show", job)["hindrances"] == []


GATED = """
from umbel import Limit, Umbel

app = Umbel()

@app.task(limit=Limit(1))
def report() -> None:
    pass
"""


def test_a_job_at_a_paused_gate_says_so(shell: Shell) -> None:
    (shell.folder / "tasks.py").write_text(GATED)
    with shell.worker():
        shell.say("pause", "--gate", "limit:tasks.report", "--reason", "audit")
        job = shell.say("send", "report")
        (said,) = shell.ask("jobs", "show", job)["hindrances"]
    assert said == (
        "The gate limit:tasks.report is paused by an operator (audit)."
        " Resume it: umbel resume --gate limit:tasks.report"
    )


def test_the_list_of_jobs_has_a_note_if_something_is_paused(shell: Shell) -> None:
    assert shell.run("jobs", "list").stderr == ""
    shell.say("pause", "mail")
    assert shell.run("jobs", "list").stderr == "Paused: queue mail. See umbel pause list.\n"
    assert shell.run("jobs", "list", "--json").stderr == ""


def test_pause_list_shows_every_pause_with_its_reason(shell: Shell) -> None:
    assert shell.say("pause", "list") == "Nothing is paused."
    assert shell.ask("pause", "list") == []
    shell.say("pause", "mail", "--reason", "provider is down")
    shell.say("pause", "--yes")
    head, everything, mail = shell.say("pause", "list").splitlines()
    assert head.split() == ["scope", "name", "by", "for", "reason"]
    assert everything.split()[:3] == ["all", "an", "operator"]
    assert mail.split()[:2] == ["queue", "mail"]
    assert mail.endswith("provider is down")
    found = shell.ask("pause", "list")
    assert [(one["scope"], one["name"]) for one in found] == [("all", ""), ("queue", "mail")]


def test_a_queue_that_is_called_list_is_paused_with_its_option(shell: Shell) -> None:
    assert shell.ask("pause", "--queue", "list")["name"] == "list"
    refused = shell.run("pause", "list", "--reason", "why")
    assert refused.returncode == 2
    assert "--queue list" in refused.stderr


def test_resuming_says_what_was_resumed_or_that_nothing_was_paused(shell: Shell) -> None:
    assert shell.say("resume") == "Nothing was paused."
    assert shell.say("resume", "mail") == "Nothing was paused."
    assert shell.ask("resume", "mail")["state"] == "not paused"
    shell.say("pause", "mail")
    assert shell.say("resume").splitlines() == [
        "No operator has paused everything.",
        "Still paused: queue mail",
    ]
    assert shell.say("resume", "mail") == "queue mail resumed; no workers are running"


def test_pausing_everything_needs_a_confirmation(shell: Shell) -> None:
    refused = shell.run("pause")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert shell.say("pause", "list") == "Nothing is paused."
    assert shell.say("pause", "--yes") == "everything paused; no workers are running"
