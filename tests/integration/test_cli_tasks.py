"""``umbel tasks``: what is declared, how long it runs, and which workers have it."""

from __future__ import annotations

import signal

import pytest

from integration.command_line import Running, Shell, wait_until
from umbel import Limit, Pool, Rate, Retry
from umbel.operations.task_views import option_texts
from umbel.tasks import TaskOptions

OTHER = """
from umbel import Limit, Umbel

app = Umbel()

@app.task(queue="mail", timeout=30, limit=[5, Limit(1, token="user")])
async def post(user: str) -> None:
    '''Send a letter.

    By mail.'''
"""


def finish(shell: Shell, *jobs: tuple[str, ...]) -> None:
    """Run these jobs to their ends."""
    for job in jobs:
        shell.say("send", *job)
    wait_until(lambda: all(job["finished"] for job in shell.ask("jobs", "list")))


def stop(worker: Running) -> None:
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0


def test_tasks_have_options_run_times_and_workers(shell: Shell) -> None:
    before = {task["name"]: task for task in shell.ask("tasks")}
    assert "tasks.add" in before
    assert (before["tasks.add"]["workers"], before["tasks.add"]["runs"]) == ([], None)
    with shell.worker("--name", "anna") as anna, shell.worker("--name", "bert"):
        finish(shell, ("add", "1", "2"), ("add", "3", "4"), ("fail", "why"))
        found = {task["name"]: task for task in shell.ask("tasks")}
        assert found["tasks.greet"]["queue"] == "mail"
        assert found["tasks.fail"]["options"] == {"retry": "1, first 0.05"}
        assert sorted(found["tasks.add"]["workers"]) == ["anna", "bert"]
        add, fail = found["tasks.add"]["runs"], found["tasks.fail"]["runs"]
        assert (add["jobs"], add["runs"], add["buried"]) == (2, 2, 0)
        assert (fail["jobs"], fail["runs"], fail["buried"]) == (1, 2, 1), "a retry is a run"
        assert 0 <= add["p50"] <= add["p95"] == add["longest"]
        assert not [name for name in found if name.startswith("umbel.")], "no internal tasks"
        (line,) = [one for one in shell.say("tasks").splitlines() if one.startswith("tasks.fail")]
        assert line.split()[:3] == ["tasks.fail", "default", "2"]
        assert line.endswith("2  retry 1, first 0.05")
        stop(anna)
        assert shell.ask("tasks", "tasks.add")["workers"] == ["bert"]


def test_one_task_is_shown_by_the_end_of_its_name(shell: Shell) -> None:
    (shell.folder / "other.py").write_text(OTHER)
    shown = shell.run("tasks", "post", app="other")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines() == [
        "task     other.post(user: str) -> None",
        "         Send a letter.",
        "kind     async def",
        "queue    mail",
        "timeout  30 s",
        "limit    5, 1 for each user",
        "runs     none among the 10,000 newest jobs",
        "workers  none",
    ]


def test_a_task_of_another_application_is_shown_with_its_workers(shell: Shell) -> None:
    (shell.folder / "other.py").write_text(OTHER)
    with shell.worker("--name", "anna") as anna:
        found = shell.run("tasks", "tasks.add", app="other").stdout
        assert "not in this application" in found
        assert "workers   anna" in found
        listed = shell.run("tasks", app="other").stdout
        assert "not declared in this application" in listed
        stop(anna)
    unknown = shell.run("tasks", "tasks.add", app="other")
    assert unknown.returncode == 1
    assert "no task 'tasks.add' is declared here, and no running worker has it" in unknown.stderr


def test_run_times_are_those_of_the_newest_jobs(shell: Shell) -> None:
    with shell.worker():
        finish(shell, ("fail", "why"))
        for number in range(3):
            shell.say("send", "add", "1", str(number), "--wait")
    narrow = {task["name"]: task["runs"] for task in shell.ask("tasks", "--window", "2")}
    assert narrow["tasks.add"]["jobs"] == 2
    assert narrow["tasks.fail"] is None
    assert shell.ask("tasks", "add", "--window", "2")["runs"]["jobs"] == 2
    assert shell.ask("tasks", "fail", "--window", "1")["runs"]["jobs"] == 1


def per_tenant(tenant: str) -> str:
    return tenant


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({}, {}),
        ({"queue": "mail"}, {}),
        ({"retry": 5}, {}),
        ({"retry": 3}, {"retry": "3"}),
        ({"retry": Retry(5, first=2, cap=120)}, {"retry": "5, first 2, cap 120"}),
        ({"timeout": 0.5, "keep": 86400}, {"timeout": "0.5 s", "keep": "86400 s"}),
        ({"limit": 0}, {"limit": "0"}),
        ({"limit": Limit(2, per="worker")}, {"limit": "2 per worker"}),
        ({"limit": Limit(2, token=per_tenant)}, {"limit": "2 for each per_tenant"}),
        ({"rate": [Rate("200/m"), Rate("1/30s")]}, {"rate": "200/m, 1/30s"}),
        ({"pool": Pool("gpus")}, {"pool": "gpus"}),
        ({"unique": True, "interruptible": True}, {"unique": "yes", "interruptible": "yes"}),
        ({"broadcast": 60}, {"broadcast": "60 s"}),
        ({"affinity": "plan", "track": "state"}, {"affinity": "plan", "track": "state"}),
    ],
)
def test_only_options_that_differ_from_the_defaults_are_shown(
    options: dict[str, object], texts: dict[str, str]
) -> None:
    assert option_texts(TaskOptions.from_declaration(options)) == texts
