"""The command line as people and scripts use it: real processes, real files."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from running import DEADLINE, postgres_schema

from integration.command_line import HANG_SECONDS, TASKS, Shell, wait_until
from umbel import __version__
from umbel.cli.entry import COMMANDS

# --- the root --------------------------------------------------------------------------------


def test_version_and_help(shell: Shell) -> None:
    assert shell.run("--version", app=None).stdout == f"umbel {__version__}\n"
    told = shell.run("--help", app=None).stdout
    for command in ("worker", "dev", "send", "jobs", "queues", "pause", "db", "bench"):
        assert command in told


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(shell: Shell, command: str) -> None:
    done = shell.run(command, "--help", app=None)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) > 4


def test_showing_help_loads_no_terminal_library() -> None:
    code = (
        "import sys; from umbel.cli.entry import run; run(['--help']);"
        "sys.exit(bool({'rich', 'structlog', 'sqlite3', 'psycopg'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- finding the application -----------------------------------------------------------------


def test_a_module_that_is_missing_is_named(shell: Shell) -> None:
    done = shell.run("jobs", "list", app="nowhere")
    assert done.returncode == 2
    assert "no module 'nowhere'" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_attribute_that_is_no_application_is_named_with_one_that_is(shell: Shell) -> None:
    done = shell.run("jobs", "list", app="tasks:add")
    assert done.returncode == 2
    assert "tasks:add" in done.stderr
    assert "Found: tasks:app" in done.stderr


def test_a_module_that_cannot_be_imported_shows_its_own_traceback_only(shell: Shell) -> None:
    (shell.folder / "broken.py").write_text("def f():\n    return 1 / 0\nf()\n")
    done = shell.run("jobs", "list", app="broken")
    assert done.returncode == 2
    assert "ZeroDivisionError" in done.stderr
    assert 'broken.py", line 2' in done.stderr
    assert "umbel/cli" not in done.stderr


def test_a_missing_import_inside_the_module_is_not_taken_for_the_module(shell: Shell) -> None:
    (shell.folder / "broken.py").write_text("import not_installed_anywhere\n")
    done = shell.run("jobs", "list", app="broken")
    assert "not_installed_anywhere" in done.stderr
    assert "broken cannot be imported" in done.stderr


def test_a_file_instead_of_a_module_is_corrected(shell: Shell) -> None:
    assert "-A tasks" in shell.run("jobs", "list", app="tasks.py").stderr


def test_the_application_may_come_from_the_environment(shell: Shell) -> None:
    done = shell.run("jobs", "list", app=None, UMBEL_APP="tasks:app")
    assert done.returncode == 0


def test_without_any_application_the_answer_says_what_to_write(shell: Shell) -> None:
    done = shell.run("worker", app=None)
    assert done.returncode == 2
    assert "umbel -A tasks" in done.stderr


def test_an_application_of_another_name_is_found_when_it_is_the_only_one(shell: Shell) -> None:
    (shell.folder / "other.py").write_text("from umbel import Umbel\nshop = Umbel()\n")
    assert shell.run("jobs", "list", app="other").returncode == 0


# --- errors ----------------------------------------------------------------------------------


def test_errors_are_json_on_stderr_when_json_is_asked_for(shell: Shell) -> None:
    done = shell.run("jobs", "show", "no-such-job", "--json")
    assert done.returncode == 1
    assert done.stdout == ""
    assert json.loads(done.stderr)["error"]["type"] == "UnknownJob"


def test_a_wrong_option_is_json_too(shell: Shell) -> None:
    done = shell.run("jobs", "list", "--nonsense", "--json")
    assert done.returncode == 2
    assert "--nonsense" in json.loads(done.stderr)["error"]["message"]


@pytest.mark.parametrize(
    "words",
    [
        ("jobs", "list"),
        ("queues",),
        ("limits",),
        ("pools",),
        ("workers",),
        ("health",),
        ("pause", "--yes"),
        ("pause", "list"),
        ("resume",),
        ("db", "status"),
        ("db", "migrate"),
        ("send", "add", "1", "2"),
        ("worker",),
        ("dev", "--no-reload"),
    ],
    ids=" ".join,
)
def test_a_server_that_is_down_is_exit_code_3_and_no_traceback(
    shell: Shell, words: tuple[str, ...]
) -> None:
    shell.env["UMBEL_URL"] = "postgresql://postgres@127.0.0.1:1/test"
    done = shell.run(*words)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "127.0.0.1" in done.stderr + done.stdout


def test_a_server_that_never_answers_is_given_up_on(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        shell.env["UMBEL_URL"] = f"postgresql://postgres@127.0.0.1:{port}/test"
        done = shell.run("jobs", "list")
    assert done.returncode == 3
    assert "check that the server runs" in done.stderr


def test_a_missing_schema_says_how_to_make_it(shell: Shell) -> None:
    with postgres_schema() as url:
        shell.env["UMBEL_URL"] = url + "_none"
        for words in (("jobs", "list"), ("worker",)):
            done = shell.run(*words)
            assert done.returncode == 1
            assert "umbel db migrate" in done.stderr
        assert shell.run("db", "status").returncode == 1


# --- send ------------------------------------------------------------------------------------


def test_send_prints_the_id_of_a_queued_job(shell: Shell) -> None:
    job = shell.say("send", "tasks.add", "1", "2")
    assert shell.ask("jobs", "show", job)["state"] == "queued"
    assert shell.ask("jobs", "show", job)["args"] == [1, 2]


def test_arguments_are_read_as_json_and_fitted_to_the_annotations(shell: Shell) -> None:
    job = shell.say("send", "greet", "12", "loud=true")
    story = shell.ask("jobs", "show", job)
    assert (story["args"], story["kwargs"]) == (["12"], {"loud": True})
    job = shell.say("send", "add", "-1", "--kwargs", '{"b": -2}', "--priority", "-3")
    story = shell.ask("jobs", "show", job)
    assert (story["args"], story["kwargs"], story["priority"]) == ([-1], {"b": -2}, -3)


def test_an_argument_that_does_not_fit_is_named(shell: Shell) -> None:
    done = shell.run("send", "add", "1", "two")
    assert done.returncode == 2
    assert "'two' for b" in done.stderr


def test_an_unknown_task_is_not_found_and_the_nearest_name_is_suggested(shell: Shell) -> None:
    done = shell.run("send", "ad", "1")
    assert done.returncode == 1
    assert "tasks.add" in done.stderr


def test_options_of_a_call_are_preserved(shell: Shell) -> None:
    job = shell.say(
        "send", "add", "1", "2", "--queue", "other", "--delay", "60", "--expires", "90",
        "--unique", "k",
    )  # fmt: skip
    story = shell.ask("jobs", "show", job)
    assert (story["queue"], story["state"], story["unique"]) == ("other", "scheduled", "k")
    assert story["expires"] is not None
    again = shell.run("send", "add", "1", "2", "--unique", "k")
    assert again.returncode == 1
    assert job in again.stderr


def test_a_cloudevent_is_published_from_a_file(shell: Shell) -> None:
    event = {
        "specversion": "1.0", "id": "0195d3a0-0000-7000-8000-000000000001", "source": "/x",
        "type": "umbel.command", "subject": "tasks.add", "data": {"args": [1, 2]},
    }  # fmt: skip
    (shell.folder / "event.json").write_text(json.dumps(event))
    assert shell.say("send", "--cloudevent", "event.json") == event["id"]
    assert shell.ask("jobs", "show", str(event["id"]))["args"] == [1, 2]
    bad = shell.run("send", "--cloudevent", "tasks.py")
    assert bad.returncode == 1
    assert "not JSON" in bad.stderr


def test_without_an_application_a_url_is_enough_to_send_and_look(shell: Shell) -> None:
    sent = shell.run("send", "tasks.add", "1", "2", app=None)
    assert sent.returncode == 0
    listed = shell.run("jobs", "list", "--json", app=None)
    assert json.loads(listed.stdout)[0]["task"] == "tasks.add"


def test_waiting_prints_the_result_or_the_error(shell: Shell) -> None:
    with shell.worker():
        assert shell.say("send", "add", "20", "22", "--wait") == "42"
        assert shell.say("send", "--wait", "greet", "Ann") == '"hello Ann"'
        failed = shell.run("send", "fail", "no luck", "--wait", "60")
        assert failed.returncode == 1
        assert "ValueError: no luck" in failed.stderr
        story = shell.ask("send", "add", "1", "2", "--wait")
        assert (story["state"], story["result"]) == ("succeeded", 3)


def test_waiting_in_vain_ends_with_an_error_and_the_job_stays(shell: Shell) -> None:
    done = shell.run("send", "add", "1", "2", "--wait", "0.2")
    assert done.returncode == 1
    assert "not finished" in done.stderr
    assert shell.ask("jobs", "list")[0]["state"] == "queued"


# --- jobs ------------------------------------------------------------------------------------


def test_the_history_of_a_job_shows_every_attempt_with_its_traceback(shell: Shell) -> None:
    with shell.worker("--name", "box") as worker:
        job = shell.say("send", "fail", "no luck")
        worker.wait_for("buried")
    text = shell.say("jobs", "show", job)
    for part in (job, "buried", "tasks.fail", '("no luck")', "attempt 1", "attempt 2", "on box"):
        assert part in text
    assert text.count("ValueError: no luck") == 2
    assert 'tasks.py", line' in text
    assert "\x1b" not in text
    story = shell.ask("jobs", "show", job)
    assert [attempt["ended"] for attempt in story["attempts"]] == ["retry", "failed"]


def test_either_end_of_an_id_is_enough_when_it_is_the_only_one(shell: Shell) -> None:
    job = shell.say("send", "add", "1", "2")
    assert shell.ask("jobs", "show", job[:6])["id"] == job
    assert shell.ask("jobs", "show", job[-8:])["id"] == job
    shell.say("send", "add", "1", "2")
    both = shell.run("jobs", "show", job[:4])
    assert both.returncode == 1
    assert "matches 2 jobs" in both.stderr


def test_jobs_are_listed_by_state_task_and_queue(shell: Shell) -> None:
    add = shell.say("send", "add", "1", "2")
    greet = shell.say("send", "greet", "x")
    later = shell.say("send", "add", "1", "2", "--delay", "60")
    assert [job["id"] for job in shell.ask("jobs", "list", "--queue", "mail")] == [greet]
    assert [job["id"] for job in shell.ask("jobs", "list", "--task", "greet")] == [greet]
    assert [job["id"] for job in shell.ask("jobs", "list", "--state", "scheduled")] == [later]
    assert len(shell.ask("jobs", "list", "-n", "2")) == 2
    assert add[-8:] in shell.say("jobs", "list")


def test_a_waiting_job_is_cancelled_with_its_reason(shell: Shell) -> None:
    job = shell.say("send", "add", "1", "2")
    assert "cancelled" in shell.say("jobs", "cancel", job, "--reason", "not wanted")
    story = shell.ask("jobs", "show", job)
    assert (story["state"], story["reason"]) == ("cancelled", "not wanted")
    assert shell.run("jobs", "cancel", "0195d3a0-0000-7000-8000-000000000001").returncode == 1


def test_a_running_job_shows_its_progress_and_is_stopped_by_cancel(shell: Shell) -> None:
    with shell.worker("--lease", "2") as worker:
        job = shell.say("send", "wait", str(shell.folder / "never"))
        worker.wait_for("WAITING")
        wait_until(lambda: "30% (3 of 10)" in shell.say("jobs", "show", job))
        assert "asked to stop" in shell.say("jobs", "cancel", job)
        worker.wait_for('"cancelled"')
    assert shell.ask("jobs", "show", job)["state"] == "cancelled"


def test_buried_jobs_are_retried_by_id_and_in_bulk_and_then_forgotten(shell: Shell) -> None:
    with shell.worker() as worker:
        jobs = [shell.say("send", "fail", str(number)) for number in range(3)]
        worker.wait_for("buried", times=3)
        assert shell.ask("jobs", "retry", jobs[0])["queued"] == [jobs[0]]
        worker.wait_for("buried", times=4)
        assert sorted(shell.ask("jobs", "retry", "--task", "fail")["queued"]) == sorted(jobs)
        worker.wait_for("buried", times=7)
    refused = shell.run("jobs", "purge", "--state", "buried")
    assert refused.returncode == 2, "nobody can answer here, so it must not happen"
    assert "--yes" in refused.stderr
    assert shell.ask("jobs", "purge", "--state", "buried", "--yes") == {"forgotten": 3}
    assert shell.ask("jobs", "list") == []


def test_the_steps_of_a_job_are_shown_and_stay_unless_it_is_retried_from_scratch(
    shell: Shell,
) -> None:
    with shell.worker() as worker:
        job = shell.say("send", "stepwise")
        worker.wait_for("buried")
        steps = shell.ask("jobs", "show", job)["steps"]
        assert [(one["number"], one["name"]) for one in steps] == [
            (1, "load"),
            (2, "add"),
            (3, "add#2"),
        ]
        assert [one["bytes"] for one in steps] == [1, 1, 2]
        assert all(one["seconds"] >= 0 and one["finished"].endswith("Z") for one in steps)
        told = shell.say("jobs", "show", job).splitlines()
        assert told[-4].split() == ["step", "name", "done", "took", "bytes"]
        assert told[-1].split()[:2] == ["3", "add#2"]
        shell.ask("jobs", "retry", job)
        worker.wait_for("buried", times=2)
        assert shell.ask("jobs", "show", job)["steps"] == steps, "a step was done again"
    assert shell.ask("jobs", "retry", job, "--from-scratch")["queued"] == [job]
    assert shell.ask("jobs", "show", job)["steps"] == []
    assert "add#2" not in shell.say("jobs", "show", job)


def test_a_job_that_succeeded_is_not_retried(shell: Shell) -> None:
    with shell.worker():
        job = shell.ask("send", "add", "1", "2", "--wait")["id"]
    done = shell.run("jobs", "retry", job)
    assert done.returncode == 1
    assert "only buried" in done.stderr


def test_a_buried_job_is_edited_and_runs_again_under_its_id(shell: Shell) -> None:
    with shell.worker() as worker:
        job = shell.say("send", "divide", "8", "0")
        worker.wait_for("buried")
        edited = shell.say("jobs", "edit", job[-6:], "by=2")
        assert edited.startswith(job)
        worker.wait_for("succeeded")
        story = shell.ask("jobs", "show", job)
        assert (story["state"], story["result"]) == ("succeeded", 4)
        assert story["args"] == [8, 2], "one argument is changed, the other stays"
        assert [attempt["ended"] for attempt in story["attempts"]] == ["failed", "succeeded"]


def test_a_job_is_edited_whole_and_moved_to_another_task_and_queue(shell: Shell) -> None:
    job = shell.say("send", "divide", "8", "0")
    shell.say("jobs", "cancel", job)
    options = ("--task", "add", "--queue", "other", "--priority", "5")
    assert shell.ask("jobs", "edit", job, "-4", "6", *options) == {"queued": [job]}
    story = shell.ask("jobs", "show", job)
    assert (story["task"], story["queue"], story["priority"]) == ("tasks.add", "other", 5)
    assert (story["args"], story["state"]) == ([-4, 6], "queued")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("by=two",), "by"),
        (("to=3",), "to"),
        (("1", "2", "3"), "too many"),
        (("--task", "nothing"), "nothing"),
        (("--task", "fail"), "fail"),
        ((), "jobs retry"),
    ],
)
def test_an_edit_that_does_not_fit_changes_nothing(
    shell: Shell, change: tuple[str, ...], said: str
) -> None:
    job = shell.say("send", "divide", "8", "0")
    shell.say("jobs", "cancel", job)
    done = shell.run("jobs", "edit", job, *change)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    story = shell.ask("jobs", "show", job)
    assert (story["state"], story["args"]) == ("cancelled", [8, 0])


def test_a_job_that_waits_is_not_edited(shell: Shell) -> None:
    job = shell.say("send", "divide", "8", "0")
    done = shell.run("jobs", "edit", job, "by=2")
    assert done.returncode == 1
    assert "only buried" in done.stderr
    assert shell.ask("jobs", "show", job)["args"] == [8, 0]


# --- queues, workers, pause ------------------------------------------------------------------


def test_queues_are_shown_moved_and_purged(shell: Shell) -> None:
    for _ in range(3):
        shell.say("send", "add", "1", "2")
    assert shell.ask("queues")[0]["queued"] == 3
    assert "no worker" in shell.say("queues", "list")
    assert shell.ask("queues", "move", "default", "other")["moved"] == 3
    assert shell.run("queues", "purge", "other").returncode == 2
    assert shell.ask("queues", "purge", "other", "--yes")["cancelled"] == 3
    assert {job["state"] for job in shell.ask("jobs", "list")} == {"cancelled"}


def test_what_a_backlog_holds_is_shown_and_published(shell: Shell) -> None:
    assert "in memory" in shell.say("publisher", "status")
    broker = shell.env["UMBEL_URL"]
    shell.env["UMBEL_BACKLOG"] = "sqlite:///backlog.db"
    assert "The backlog in backlog.db is empty" in shell.say("publisher", "status")
    shell.env["UMBEL_URL"] = "postgresql://nobody@127.0.0.1:1/nowhere"
    shell.say("send", "add", "1", "2")
    waiting = shell.run("publisher", "status")
    assert (waiting.returncode, "1 message of at most 10,000" in waiting.stdout) == (1, True)
    refused = shell.run("publisher", "flush", "--timeout", "0.1", "--json")
    assert (refused.returncode, json.loads(refused.stdout)) == (1, {"published": 0, "left": 1})
    shell.env["UMBEL_URL"] = broker
    assert shell.ask("publisher", "flush") == {"published": 1, "left": 0}
    assert [job["state"] for job in shell.ask("jobs", "list")] == ["queued"]


def test_workers_are_shown(shell: Shell) -> None:
    assert "No workers are running" in shell.say("workers")
    with shell.worker("--name", "box", "--io", "7", "--queues", "mail,default"):
        (seen,) = shell.ask("workers")
        assert (seen["name"], seen["io"], seen["state"]) == ("box", 7, "working")
        assert sorted(seen["queues"]) == ["default", "mail"]
        assert "box" in shell.say("workers")


def test_a_pause_is_confirmed_holds_and_is_undone(shell: Shell) -> None:
    with shell.worker() as worker:
        told = shell.ask("pause", "mail", "--reason", "repairs")
        assert (told["scope"], told["name"], told["workers"]) == ("queue", "mail", 1)
        worker.wait_for("queue mail")
        job = shell.say("send", "greet", "Ann")
        assert shell.say("send", "add", "1", "1", "--wait") == "2", "other queues go on"
        assert shell.ask("jobs", "show", job)["state"] == "queued"
        assert "paused" in shell.say("queues")
        assert shell.ask("resume", "mail")["state"] == "resumed"
        worker.wait_for('"task":"tasks.greet"')


def test_a_pause_of_nothing_known_or_of_two_things_asks_back(shell: Shell) -> None:
    assert shell.run("pause", "nonsense").returncode == 2
    shell.say("send", "add", "1", "2", "--queue", "add")
    both = shell.run("pause", "add")
    assert both.returncode == 2
    assert "--queue add or --task add" in both.stderr
    assert shell.ask("pause", "--task", "add")["name"] == "tasks.add"
    assert shell.ask("pause", "--yes")["scope"] == "all"
    resumed = shell.ask("resume")
    assert resumed["also_paused"] == [{"scope": "task", "name": "tasks.add"}]
    assert shell.ask("resume", "tasks.add")["also_paused"] == []


# --- db, health, config, completion ----------------------------------------------------------


def test_a_schema_is_created_and_its_version_reported(shell: Shell) -> None:
    with postgres_schema() as url:
        shell.env["UMBEL_URL"] = url
        told = shell.ask("db", "status")
        assert told["up_to_date"] is True
        assert shell.ask("db", "migrate")["applied"] == []
        with shell.worker():
            assert shell.say("send", "add", "1", "2", "--wait") == "3"


def test_health_is_an_exit_code(shell: Shell) -> None:
    alone = shell.run("health", "--json")
    assert alone.returncode == 1
    assert json.loads(alone.stdout)["checks"]["broker"] == "ok"
    with shell.worker():
        assert shell.say("health").startswith("healthy")


def test_config_says_where_settings_come_from_and_covers_passwords(shell: Shell) -> None:
    shell.env["UMBEL_URL"] = "postgresql://me:hush@nowhere/db"
    shell.env["UMBEL_DEADLINE"] = "3"
    told = shell.run("config", "--json").stdout
    assert "hush" not in told
    settings = json.loads(told)
    assert settings["broker"]["from"] == "UMBEL_URL"
    assert settings["deadline"] == {"value": 3.0, "from": "UMBEL_DEADLINE"}
    assert settings["namespace"]["from"] == "default"


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: Shell, name: str) -> None:
    assert "_UMBEL_COMPLETE" in shell.run("completion", name, app=None).stdout


def test_completion_completes_commands(shell: Shell) -> None:
    done = shell.run(
        app=None, _UMBEL_COMPLETE="bash_complete", COMP_WORDS="umbel jo", COMP_CWORD="1"
    )
    assert "jobs" in done.stdout


# --- the worker ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_stops_cleanly_when_asked_to(shell: Shell, number: int) -> None:
    with shell.worker() as worker:
        worker.signal(number)
        assert worker.end() == 0
        assert json.loads(worker.lines[-1])["event"] == "worker stopped"
    assert shell.ask("workers") == []


def test_a_second_signal_skips_the_grace_and_the_job_goes_back(shell: Shell) -> None:
    with shell.worker("--grace", "600") as worker:
        job = shell.say("send", "wait", str(shell.folder / "never"))
        worker.wait_for("WAITING")
        worker.signal(signal.SIGTERM)
        worker.wait_for("stopping")
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0
    story = shell.ask("jobs", "show", job)
    assert (story["state"], story["attempt"]) == ("queued", 1)


def test_every_line_of_a_worker_is_json_and_names_the_job(shell: Shell) -> None:
    with shell.worker() as worker:
        job = shell.ask("send", "add", "7", "1", "--wait")["id"]
        line = json.loads(worker.wait_for("adding 7"))
        assert (line["logger"], line["job"], line["task"]) == ("mine", job, "tasks.add")
        assert line["attempt"] == 1
        assert len(line["trace"]) == 32
        assert all(json.loads(line) for line in list(worker.lines))


def test_a_worker_serves_its_probe(shell: Shell) -> None:
    with shell.worker("--probe", "127.0.0.1:0") as worker:
        address = json.loads(worker.wait_for("serving the probe"))["address"]
        shell.say("send", "add", "1", "2", "--wait")
        assert urlopen(f"{address}/livez", timeout=HANG_SECONDS).status == 200
        ready = json.load(urlopen(f"{address}/readyz", timeout=HANG_SECONDS))
        assert ready["ready"] is True
        metrics = urlopen(f"{address}/metrics", timeout=HANG_SECONDS).read().decode()
        assert 'umbel_jobs_total{task="tasks.add",outcome="succeeded"} 1' in metrics


def test_a_probe_address_that_is_taken_ends_the_worker_with_an_error(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = shell.run("worker", "--probe", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.returncode == 2
    assert "--probe" in done.stderr


def test_wrong_options_of_a_worker_are_named(shell: Shell) -> None:
    for words in (("--io", "0", "--cpu", "0"), ("--lease", "0"), ("--probe", "nowhere")):
        done = shell.run("worker", *words)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_an_application_that_configures_logging_itself_has_the_last_word(shell: Shell) -> None:
    (shell.folder / "own.py").write_text(
        "import logging\n"
        "logging.basicConfig(format='OWN %(message)s', level='INFO', force=True)\n" + TASKS
    )
    with shell.start("worker", "--log-format", "json", app="own") as worker:
        worker.wait_for('"worker started"')
        done = shell.run("send", "add", "5", "1", "--wait", app="own")
        assert done.returncode == 0
        worker.wait_for("OWN adding 5")
        worker.wait_for('"succeeded"')


# --- several processes -----------------------------------------------------------------------

UNUSED_BY_THE_PARENT = (
    *("tasks", "psycopg", "redis", "sqlite3", "rich", "structlog", "anyio", "asyncio"),
    *("umbel.app", "umbel.worker", "umbel.tasks", "umbel.telemetry"),
)


def test_processes_have_names_of_their_own_and_stop_together(shell: Shell) -> None:
    with shell.worker("--processes", "2", "--name", "box") as fleet:
        fleet.wait_for("worker started", times=2)
        assert sorted(worker["name"] for worker in shell.ask("workers")) == ["box.0", "box.1"]
        assert shell.say("send", "add", "1", "2", "--wait") == "3"
        fleet.signal(signal.SIGTERM)
        assert fleet.end() == 0
    assert shell.ask("workers") == []


def test_a_process_that_dies_is_started_again_and_this_is_reported(shell: Shell) -> None:
    with shell.worker("--processes", "2") as fleet:
        fleet.wait_for("worker started", times=2)
        os.kill(shell.ask("workers")[0]["pid"], signal.SIGKILL)
        told = json.loads(fleet.wait_for("died and is restarted"))
        assert told.get("signal") == "SIGKILL", fleet.lines
        fleet.wait_for("worker started", times=3)
        fleet.signal(signal.SIGINT)
        assert fleet.end() == 0


def test_a_second_signal_to_the_parent_reaches_the_processes(shell: Shell) -> None:
    with shell.worker("--processes", "2", "--grace", "600") as fleet:
        fleet.wait_for("worker started", times=2)
        shell.say("send", "wait", str(shell.folder / "never"))
        fleet.wait_for("WAITING")
        fleet.signal(signal.SIGTERM)
        fleet.wait_for("fetches no more jobs", times=2)
        fleet.signal(signal.SIGTERM)
        assert fleet.end() == 0


def test_a_supervisor_that_signals_every_process_shortens_no_grace_period(shell: Shell) -> None:
    marker = shell.folder / "go"
    with shell.worker("--processes", "2", "--grace", "600") as fleet:
        fleet.wait_for("worker started", times=2)
        pids = [worker["pid"] for worker in shell.ask("workers")]
        job = shell.say("send", "wait", str(marker))
        fleet.wait_for("WAITING")
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        fleet.signal(signal.SIGTERM)
        fleet.wait_for("fetches no more jobs", times=2)
        fleet.wait_for('"stopping"')
        marker.touch()
        assert fleet.end() == 0
    assert shell.ask("jobs", "show", job)["state"] == "succeeded"


def test_processes_do_not_outlive_a_parent_that_was_killed(shell: Shell) -> None:
    with shell.worker("--processes", "2") as fleet:
        fleet.wait_for("worker started", times=2)
        fleet.signal(signal.SIGKILL)
        fleet.wait_for('"worker stopped"', times=2)
    wait_until(lambda: shell.ask("workers") == [])


def test_an_application_that_cannot_be_imported_ends_all_processes(shell: Shell) -> None:
    done = shell.run("worker", "--processes", "3", app="nowhere")
    assert done.returncode == 2
    assert done.stderr.count("no module 'nowhere'") == 1, "one process reports it for all"
    assert "is restarted" not in done.stdout


def test_the_parent_of_processes_loads_neither_the_application_nor_a_driver(shell: Shell) -> None:
    code = (
        "import sys; from umbel.cli.entry import run\n"
        "ended = run(['-A', 'tasks', 'worker', '--processes', '2', '--lease', '0.01'])\n"
        f"found = {set(UNUSED_BY_THE_PARENT)!r} & set(sys.modules)\n"
        "sys.exit(f'{ended} {found}' if ended != 2 or found else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=shell.folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("lease=0.01") == 1, "one process reports it for all"


def test_the_parent_of_processes_stays_small(shell: Shell) -> None:
    with shell.worker("--processes", "2") as fleet:
        fleet.wait_for("worker started", times=2)
        status = Path(f"/proc/{fleet.process.pid}/status").read_text()
        maps = Path(f"/proc/{fleet.process.pid}/maps").read_text()
        fleet.signal(signal.SIGTERM)
        assert fleet.end() == 0
    resident = int(status.partition("VmRSS:")[2].split()[0]) * 1024
    assert resident < 25_000_000
    assert "_sqlite3" not in maps


def test_a_server_that_goes_away_never_ends_a_worker(shell: Shell) -> None:
    with shell.worker("--lease", "1") as worker:
        blocker = sqlite3.connect(shell.folder / "umbel.db", isolation_level=None)
        blocker.execute("begin exclusive")
        worker.wait_for("cannot be reached")
        blocker.execute("rollback")
        blocker.close()
        worker.wait_for("can be reached again")
        assert shell.say("send", "add", "1", "2", "--wait") == "3"


# --- bench -----------------------------------------------------------------------------------


def test_bench_measures_and_leaves_nothing_behind(shell: Shell) -> None:
    url = f"sqlite:///{shell.folder}/bench.db?synchronous=off"
    done = shell.run("bench", "--jobs", "50", "--url", url, "--json", app=None)
    assert done.returncode == 0, done.stderr
    names = {measure["name"] for measure in json.loads(done.stdout)["measures"]}
    assert "drain, async def with a limit" in names
    assert {"publish, in bulk", "drain, async def", "round trip, p99", "import umbel"} <= names
    connection = sqlite3.connect(shell.folder / "bench.db")
    left = [connection.execute(f"select count(*) from {t}").fetchone() for t in ("job", "record")]
    connection.close()
    assert left == [(0,), (0,)]
