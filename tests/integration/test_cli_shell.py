"""``umbel shell``: code with the application, its tasks and the operations at hand."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from integration.command_line import HANG_SECONDS, Shell


def test_code_publishes_jobs_and_reads_them_without_await(shell: Shell) -> None:
    code = (
        "handle = add.delay(1, 2); job = operations.job(handle.id);"
        "print(job.task, job.state is State.QUEUED, app.registry.get('tasks.add') is add,"
        " tasks['tasks.add'] is add, len(operations.jobs(JobFilter(limit=9))),"
        " operations.deploy.status().deployment, len(operations.search(JobSearch()).jobs),"
        " operations.schedules.all(), operations.graphs.roots(), operations.access.users(),"
        " operations.audit.read())"
    )
    said = "tasks.add True True True 1 None 1 [] [] [] ([], None)"
    assert shell.say("shell", "-c", code) == said


def test_the_value_of_an_expression_is_printed_as_json(shell: Shell) -> None:
    handle = shell.say("send", "add", "1", "2")
    found = shell.ask("shell", "-c", "[job.id for job in operations.jobs(JobFilter())]")
    assert found == [handle.split()[0]]
    assert shell.ask("shell", "-c", f" operations.job({found[0]!r}) ")["task"] == "tasks.add"
    done = shell.run("shell", "--json", "-c", "operations.job('nothing')")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no job nothing" in json.loads(done.stderr)["error"]["message"]
    assert shell.run("shell", "--json", "-c", "x = 1").returncode == 1


def test_code_is_read_from_standard_input(shell: Shell) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "umbel", "-A", "tasks", "shell"],
        cwd=shell.folder,
        env=shell.env,
        input="def double(value):\n    return 2 * value\nprint(double(21), __name__)\n",
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "42 __console__\n"), done.stderr


@pytest.mark.parametrize(
    ("code", "exit_code", "error"),
    [
        ("x = 1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("x =", 1, "SyntaxError: invalid syntax"),
        ("operations.job('no such id')", 1, "error: no job no such id"),
        ("raise SystemExit(7)", 7, ""),
        ("add.delay('x', 2)", 2, "error: tasks.add(a: int, b: int) -> int: a must be int"),
        ("operations.nothing", 1, "AttributeError"),
    ],
)
def test_code_that_fails_sets_the_exit_code(
    shell: Shell, code: str, exit_code: int, error: str
) -> None:
    done = shell.run("shell", "-c", code)
    assert done.returncode == exit_code
    assert error in done.stderr
    assert "in _execute" not in done.stderr, "the traceback begins with the user's code"


def test_a_name_that_two_tasks_share_is_not_a_variable(shell: Shell) -> None:
    (shell.folder / "twice.py").write_text(
        "from umbel import Umbel\napp = Umbel()\n"
        "@app.task(name='a.work')\ndef one() -> None: ...\n"
        "@app.task(name='b.work')\ndef two() -> None: ...\n"
        "@app.task(name='b.rest')\ndef three() -> None: ...\n"
    )
    done = shell.run("shell", "-c", "print('work' in globals(), rest.name, *tasks)", app="twice")
    assert done.stdout == "False b.rest a.work b.work b.rest\n"


def test_the_prompt_shows_results_of_operations(shell: Shell) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "umbel", "-A", "tasks", "shell"],
        cwd=shell.folder,
        env=shell.env | {"TERM": "dumb", "COLUMNS": "80"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    lines = ("len(operations.queues()) + 40", "add.name.upper()", "raise SystemExit(3)")
    os.write(ours, "".join(f"{line}\n" for line in lines).encode())
    said = b""
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # Linux reports the end in this way
            break
        if not part:
            break
        said += part
    os.close(ours)
    assert process.wait(HANG_SECONDS) == 3
    text = said.decode()
    assert "add, greet, divide, fail" in text
    assert "app, tasks, operations" in text.replace("\r\n  ", " ")
    assert "40" in text
    assert "TASKS.ADD" in text
