"""The configuration file in real processes: publishers, workers, commands."""

from __future__ import annotations

import json
import signal

from integration.command_line import Shell

FILE = """
keep_days = 30

[tasks."tasks.*"]
queue = "bulk"

[tasks."tasks.fail"]
retry = 0
"""


def test_a_publisher_and_a_worker_take_the_options_of_tasks_from_the_file(shell: Shell) -> None:
    (shell.folder / "umbel.toml").write_text(FILE)
    shell.say("send", "fail", "no luck")
    (job,) = shell.ask("jobs", "list")
    assert job["queue"] == "bulk"
    with shell.worker() as worker:
        worker.wait_for("buried")
        (seen,) = shell.ask("workers")
        assert sorted(seen["queues"]) == ["bulk", "default"]
    (job,) = shell.ask("jobs", "list")
    assert (job["state"], job["attempt"]) == ("buried", 1)


def test_config_shows_what_the_file_sets_and_what_wins_over_it(shell: Shell) -> None:
    (shell.folder / "umbel.toml").write_text(FILE)
    shown = shell.ask("config")
    assert shown["keep_days"] == {"value": 30.0, "from": "umbel.toml"}
    assert shown["broker"]["from"] == "UMBEL_URL"
    assert shown["tasks"]["tasks.add"] == {
        "queue": {"value": "bulk", "from": 'umbel.toml [tasks."tasks.*"]'}
    }
    assert shown["tasks"]["tasks.fail"]["retry"]["from"] == 'umbel.toml [tasks."tasks.fail"]'
    shell.env["UMBEL_KEEP_DAYS"] = "3"
    assert shell.ask("config")["keep_days"] == {"value": 3.0, "from": "UMBEL_KEEP_DAYS"}
    assert 'umbel.toml [tasks."tasks.*"]' in shell.say("config")


def test_the_file_may_be_elsewhere_also_for_the_children_of_a_worker(shell: Shell) -> None:
    (shell.folder / "other.toml").write_text(FILE)
    with shell.start("--config", "other.toml", "worker", "--processes", "2") as fleet:
        fleet.wait_for("worker started", times=2)
        assert {tuple(sorted(one["queues"])) for one in shell.ask("workers")} == {
            ("bulk", "default")
        }
        fleet.signal(signal.SIGTERM)
        assert fleet.end() == 0
    done = shell.run("config", "--json", UMBEL_CONFIG="other.toml")
    assert json.loads(done.stdout)["keep_days"]["from"] == "UMBEL_CONFIG=other.toml"


def test_a_broker_in_the_file_is_enough_for_commands_without_an_application(shell: Shell) -> None:
    del shell.env["UMBEL_URL"]
    assert shell.run("jobs", "list", app=None).returncode == 2
    (shell.folder / "umbel.toml").write_text('broker = "sqlite:///umbel.db"')
    done = shell.run("jobs", "list", app=None)
    assert done.returncode == 0, done.stderr


def test_a_mistake_in_the_file_ends_a_command_and_does_not_blame_the_code(shell: Shell) -> None:
    for text, error in (
        ('[tasks."mail.*"]\nqeue = "x"', 'umbel.toml: [tasks."mail.*"] qeue: not an option'),
        ("keep_days = 0", "umbel.toml: keep_days"),
    ):
        (shell.folder / "umbel.toml").write_text(text)
        done = shell.run("worker")
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {error}")
        assert "tasks.py" not in done.stderr
    for words in (("--config", "none.toml"), ("--config", " ")):
        done = shell.run(*words, "config")
        assert done.returncode == 2
        assert "give" in done.stderr


def test_a_worker_warns_of_a_table_that_concerns_none_of_its_tasks(shell: Shell) -> None:
    (shell.folder / "umbel.toml").write_text('[tasks."mial.*"]\nqueue = "x"\n[tasks."*"]')
    with shell.worker() as worker:
        warning = json.loads(worker.wait_for("concerns no task"))
        assert warning["level"] == "warning"
        assert 'umbel.toml [tasks."mial.*"]' in warning["event"]
        assert len([line for line in worker.lines if "concerns no task" in line]) == 1


def test_dev_reloads_when_the_file_changes(shell: Shell) -> None:
    file = shell.folder / "umbel.toml"
    file.write_text("keep_days = 30")
    with shell.start("dev") as dev:
        dev.wait_for("worker started")
        file.write_text('namespace = "another-one"')
        dev.wait_for("worker started", times=2)
        assert any("umbel.toml" in line for line in dev.lines), dev.lines
        dev.signal(signal.SIGINT)
        assert dev.end() == 0
