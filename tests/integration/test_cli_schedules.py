"""``umbel schedules`` as people and scripts use it, with real workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.command_line import Shell, wait_until

TASKS = """
from umbel import Umbel, current

app = Umbel()

@app.task(every=1, overlap="allow")
async def beat() -> str:
    return f"{current.job.schedule} {current.job.nominal.isoformat()}"

@app.task(cron="0 3 * * *", zone="Europe/Vienna")
def clean_up() -> None: ...

@app.task
def report(days: int) -> int:
    return days
"""

WORKFLOW = """

@app.workflow
def weekly_report(days: int):
    return report.s(report.s(days))
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    (tmp_path / "tasks.py").write_text(TASKS)
    return shell


@pytest.fixture
def known(shell: Shell) -> Iterator[Shell]:
    """A shell and a worker that has declared its schedules."""
    with shell.worker():
        wait_until(lambda: len(shell.ask("schedules")) == 2)
        yield shell


def refused(shell: Shell, code: int, *words: str) -> str:
    done = shell.run(*words, "--json")
    assert (done.returncode, done.stdout) == (code, ""), done.stdout + done.stderr
    return str(json.loads(done.stderr)["error"]["message"])


def test_a_worker_fires_its_schedules_and_the_commands_show_them(known: Shell) -> None:
    def fired() -> list[dict[str, str]]:
        history: list[dict[str, str]] = known.ask("schedules", "history", "tasks.beat")
        return [one for one in history if one["state"] == "succeeded"]

    wait_until(lambda: len(fired()) >= 2)
    job = known.ask("jobs", "show", fired()[-1]["job"])
    assert job["result"].startswith("tasks.beat 20")
    nominals = [one["nominal"] for one in fired()]
    assert len({*nominals}) == len(nominals)
    lines = known.say("schedules", "list").splitlines()
    assert lines[0].split() == ["name", "fires", "next", "last", "state", "missed"]
    assert any("0 3 * * * Europe/Vienna" in line for line in lines)
    following = known.say("schedules", "next", "tasks.clean_up", "-n", "2").splitlines()
    assert len(following) == 2
    assert all(" 03:00:00+0" in line for line in following)


def test_an_edit_shows_both_values_until_it_is_reset(known: Shell) -> None:
    known.say("schedules", "edit", "tasks.clean_up", "--cron", "30 4 * * *", "--zone", "Asia/Tokyo")
    shown = known.say("schedules", "show", "tasks.clean_up")
    fires = next(line for line in shown.splitlines() if line.startswith("fires"))
    assert fires.split()[1:11] == ["30", "4", "*", "*", "*", "0", "3", "*", "*", "*"]
    assert fires.split()[11:13] == ["changed", "by"]
    (view,) = [one for one in known.ask("schedules") if one["name"] == "tasks.clean_up"]
    assert (view["plan"]["zone"], view["defined"]["zone"]) == ("Asia/Tokyo", "Europe/Vienna")
    known.say("schedules", "edit", "tasks.clean_up", "--reset")
    assert known.ask("schedules", "show", "tasks.clean_up")["changes"] == {}


def test_a_schedule_is_added_paused_resumed_triggered_and_removed(known: Shell) -> None:
    added = known.say("schedules", "add", "extra", "report", "7", "--every", "1", "--overlap=queue")
    assert added.startswith("extra: added; next 20")
    wait_until(lambda: bool(known.ask("schedules", "history", "extra")))
    known.say("schedules", "pause", "extra", "--reason", "not now")
    assert "extra: paused: not now" in known.say("schedules", "show", "extra")
    job = known.say("schedules", "trigger", "extra").strip()
    wait_until(lambda: known.ask("jobs", "show", job)["state"] == "succeeded")
    assert known.ask("jobs", "show", job)["result"] == 7
    assert known.say("schedules", "resume", "extra").startswith("extra: resumed; next 20")
    known.say("schedules", "remove", "extra")
    assert [one["name"] for one in known.ask("schedules")] == ["tasks.beat", "tasks.clean_up"]


def test_a_workflow_is_scheduled_by_its_name(shell: Shell) -> None:
    code = shell.folder / "tasks.py"
    code.write_text(f"{code.read_text()}{WORKFLOW}")
    add = ("schedules", "add", "nightly", "weekly_report")
    assert "'many' for days" in refused(shell, 2, *add, "many", "--every", "60")
    added = shell.ask(*add, "7", "--every", "86400", "--phase", "20")  # no tick comes meanwhile
    fires = "every 86400 s + 20 s"
    assert (added["plan"]["fires"], added["task"]) == (fires, "tasks.weekly_report")
    assert shell.ask("schedules", "edit", "nightly", "--phase", "5")["next"].endswith(":05.000Z")
    with shell.worker():
        job = shell.say("schedules", "trigger", "nightly").strip()
        wait_until(lambda: shell.ask("jobs", "show", job)["state"] == "succeeded")
        wait_until(lambda: shell.ask("graphs")[0]["state"] == "succeeded")
    (run,) = shell.ask("graphs")
    assert (run["workflow"], run["tasks"]) == ("tasks.weekly_report", 2)


def test_the_next_times_of_all_schedules_are_listed(known: Shell) -> None:
    found = known.ask("schedules", "next", "-n", "3")
    assert [one["name"] for one in found] == ["tasks.beat"] * 3
    assert [one["time"] for one in found] == sorted(one["time"] for one in found)
    lines = known.say("schedules", "next").splitlines()
    assert lines[0].split() == ["time", "in", "name"]
    assert len(lines) == 6


def test_wrong_commands_are_refused_with_the_remedy(known: Shell) -> None:
    add = ("schedules", "add", "x", "report", "7")
    for words, text in (
        ((*add, "--cron", "0 0 30 2 *"), "it never fires"),
        ((*add, "--cron", "0 0 * * FRIL"), '"5L"'),
        ((*add, "--every", "60", "--zone", "Mars"), "zone='Mars'"),
        (add, "give one of cron, every, at, calendar"),
        ((*add, "--at", "2020-01-01"), "it has passed"),
        (("schedules", "edit", "tasks.beat"), "nothing to change"),
    ):
        assert text in refused(known, 2, *words)
    assert "did you mean tasks.beat" in refused(known, 1, "schedules", "show", "taks.beat")
    assert "declared in the code" in refused(known, 1, "schedules", "remove", "tasks.beat")
    assert "days" in refused(known, 2, *add[:-1], "--every", "60")


def test_a_worker_without_a_scheduler_publishes_no_ticks(shell: Shell) -> None:
    with shell.worker("--no-scheduler"):
        wait_until(lambda: len(shell.ask("schedules")) == 2)
        assert shell.ask("schedules", "history", "tasks.beat") == []
        with shell.worker("--name", "other"):
            wait_until(lambda: bool(shell.ask("schedules", "history", "tasks.beat")))


def test_without_schedules_the_list_says_where_they_come_from(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    assert "There are no schedules." in shell.say("schedules")
