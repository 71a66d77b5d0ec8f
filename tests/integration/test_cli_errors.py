"""Common mistakes on the command line: one error that names the mistake and the remedy."""

from __future__ import annotations

import json

import pytest

from integration.command_line import Shell
from umbel.backends.choosing import STORES, TRANSPORTS
from umbel.configuration.settings import SCHEMES
from umbel.urls import URL_EXAMPLES, mask_url


def failing(shell: Shell, *words: str, app: str | None = "tasks", code: int = 2, **env: str) -> str:
    """Return the one error of a command, without "error: ", and check its style."""
    done = shell.run(*words, app=app, **env)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.lower().count("error:") == 1, done.stderr
    return str(done.stderr.partition("error: ")[2])


# --- commands and options --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("job", "list"), "jobs"),
        (("wroker",), "worker"),
        (("jobs", "lst"), "list"),
        (("db", "migrat"), "migrate"),
    ],
    ids=" ".join,
)
def test_an_unknown_command_is_answered_with_the_nearest_one(
    shell: Shell, words: tuple[str, ...], near: str
) -> None:
    assert f"Did you mean {near}?" in failing(shell, *words)


def test_a_command_that_resembles_none_is_answered_with_all(shell: Shell) -> None:
    assert "'xyz'. Use one of cancel, edit, list" in failing(shell, "jobs", "xyz")


def test_an_unknown_option_is_answered_with_the_nearest_one_and_the_help(shell: Shell) -> None:
    said = failing(shell, "worker", "--queue", "x")
    assert "no such option '--queue'" in said
    assert "--queues" in said
    assert "Try: umbel worker --help" in said


def test_a_group_without_a_command_shows_its_help_and_no_error(shell: Shell) -> None:
    done = shell.run("jobs")
    assert "Usage: umbel jobs" in done.stdout + done.stderr
    assert "error" not in done.stdout + done.stderr


# --- arguments of a task ---------------------------------------------------------------------


def test_an_unknown_argument_is_named_with_the_parameters_of_the_task(shell: Shell) -> None:
    said = failing(shell, "send", "add", "1", "c=3")
    assert "no parameter 'c'; the parameters are a, b" in said


def test_json_that_cannot_be_read_is_answered_with_an_example(shell: Shell) -> None:
    assert """--kwargs '{"a": 1}'""" in failing(shell, "send", "add", "--kwargs", "{")


# --- the application -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("app", "text"),
    [
        ("nowhere", "there is no module 'nowhere'"),
        ("tasks:nothing", "tasks:nothing does not exist. Found: tasks:app"),
        ("tasks.app", "try -A tasks:app"),
        ("empty", "Write app = Umbel() in it"),
        ("empty:mine", "Write mine = Umbel() in empty"),
    ],
)
def test_an_application_that_is_not_there_is_named_with_the_remedy(
    shell: Shell, app: str, text: str
) -> None:
    (shell.folder / "empty.py").write_text("")
    assert text in failing(shell, "jobs", "list", app=app)


def test_a_wrong_option_of_a_task_is_reported_as_it_is_with_its_place(shell: Shell) -> None:
    (shell.folder / "wrong.py").write_text(
        "from umbel import Umbel\napp = Umbel()\n\n@app.task(retries=3)\ndef f(): ...\n"
    )
    said = failing(shell, "jobs", "list", app="wrong")
    assert said.startswith("retries: not an option of a task; write instead: retry=3")
    assert 'wrong.py", line 4' in shell.run("jobs", "list", app="wrong").stderr


def test_a_message_to_one_worker_needs_an_application_that_signs_it(shell: Shell) -> None:
    said = failing(shell, "send", "tasks.add", "1", "2", "--worker", "0", app=None)
    assert said.startswith("--worker needs the application: give -A module:app\n")


# --- URLs and servers ------------------------------------------------------------------------


def test_a_wrong_url_names_its_variable_and_every_backend_but_not_the_module(shell: Shell) -> None:
    for app in ("tasks", None):
        said = failing(shell, "jobs", "list", app=app, UMBEL_URL="mysql://me:secret@host/db")
        assert said.startswith("UMBEL_URL='mysql://***@host/db'")
        for url in URL_EXAMPLES.values():
            assert url in said
    done = shell.run("jobs", "list", UMBEL_URL="mysql://host/db")
    assert "tasks" not in done.stderr
    assert "cannot be imported" not in done.stderr


@pytest.mark.parametrize("store", ["nats://x", "umbel://x", "amqp://me:secret@x"])
def test_a_url_that_cannot_be_a_store_is_answered_with_an_example_of_every_store(
    shell: Shell, store: str
) -> None:
    said = failing(shell, "jobs", "list", app=None, UMBEL_STORE=store)
    assert said.startswith(f"UMBEL_STORE='{mask_url(store)}': {store.partition(':')[0]}:// cannot")
    shown = {name for name, url in URL_EXAMPLES.items() if url in said}
    assert shown == {"SQLite", "PostgreSQL", "Redis", "Valkey"}


def test_a_store_that_cannot_be_the_broker_of_another_is_answered_with_examples_of_brokers(
    shell: Shell,
) -> None:
    urls = {"UMBEL_URL": "sqlite:///other.db", "UMBEL_STORE": "redis://host"}
    said = failing(shell, "jobs", "list", app=None, **urls)
    assert "sqlite is both broker and store" in said
    shown = {name for name, url in URL_EXAMPLES.items() if url in said}
    assert shown == {"Redis", "Valkey", "RabbitMQ", "NATS", "AMQP 1.0"}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("UMBEL_STORE", "mysql://host"),
        ("UMBEL_BACKLOG", "mysql://host"),
        ("UMBEL_BROKERS", "mail=mysql://host"),
        ("UMBEL_NAMESPACE", "a b"),
        ("UMBEL_DEADLINE", "-1"),
    ],
)
def test_a_wrong_variable_is_named_and_not_the_module(
    shell: Shell, variable: str, value: str
) -> None:
    done = shell.run("jobs", "list", **{variable: value})
    assert done.stderr.startswith(f"error: {variable}")
    assert "tasks" not in done.stderr


def test_a_wrong_url_in_the_code_is_reported_with_its_line(shell: Shell) -> None:
    (shell.folder / "wrong.py").write_text('from umbel import Umbel\napp = Umbel("mysql://host")\n')
    done = shell.run("jobs", "list", app="wrong")
    assert 'wrong.py", line 2' in done.stderr
    assert "error: broker='mysql://host': no backend has such a URL" in done.stderr


def test_every_backend_has_an_example_of_its_url() -> None:
    shown = {url.partition(":")[0] for url in URL_EXAMPLES.values()}
    assert shown <= set(SCHEMES)
    packages = STORES | TRANSPORTS
    assert {packages.get(scheme, "link") for scheme in shown} == {*packages.values(), "link"}


@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
def test_a_server_that_is_down_is_reported_once(shell: Shell, scheme: str) -> None:
    said = failing(shell, "jobs", "list", code=3, UMBEL_URL=f"{scheme}://127.0.0.1:1/0")
    assert "check that the server runs" in said
    assert "Is the server running" not in said
    assert ".;" not in said


def test_usage_errors_are_the_same_in_json(shell: Shell) -> None:
    error = json.loads(shell.run("job", "list", "--json").stderr)["error"]
    assert error["message"] == "there is no command 'job'. Did you mean jobs?"
    assert error["exit_code"] == 2


def test_the_words_of_other_libraries_for_a_state_are_understood(shell: Shell) -> None:
    waiting, cancelled = (shell.ask("send", "add", "1", "2")["id"] for _ in range(2))
    shell.say("jobs", "cancel", cancelled)
    found = {
        word: [job["id"] for job in shell.ask("jobs", "list", "--state", word)]
        for word in ("pending", "revoked", "failed", "done")
    }
    assert found == {"pending": [waiting], "revoked": [cancelled], "failed": [], "done": []}
