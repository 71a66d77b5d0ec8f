"""Tables of the command line on a real terminal, and the short ids in them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from integration.command_line import HANG_SECONDS, Shell, wait_until
from umbel.cli.short_names import short_ids
from umbel.cli.tables import cut, display_width, lay_out

LONG_TEXT = "the provider has rejected the message because " * 5


def on_terminal(shell: Shell, columns: int, *words: str) -> list[str]:
    """Return the lines that a command prints on a terminal of this width."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "umbel", "-A", "tasks", *words],
        cwd=shell.folder,
        env=shell.env | {"COLUMNS": str(columns), "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    data = b""
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # Linux reports the end in this way
            break
        if not part:
            break
        data += part
    os.close(ours)
    _, error = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, error
    return data.decode().replace("\r\n", "\n").splitlines()


def test_no_table_is_wider_than_the_terminal_or_has_empty_lines(shell: Shell) -> None:
    with shell.worker("--name", "a-worker-with-a-long-name", "--queues", "default,mail,reports"):
        shell.say("send", "fail", LONG_TEXT)
        shell.say("send", "add", "1", "2", "--queue", "a-queue-with-a-long-name", "--delay", "60")
        shell.say("pause", "mail", "--reason", LONG_TEXT)
        wait_until(lambda: any(job["state"] == "buried" for job in shell.ask("jobs", "list")))
        for words in (("jobs", "list"), ("tasks",), ("workers",), ("pause", "list"), ("config",)):
            for columns in (40, 80, 200):
                lines = on_terminal(shell, columns, *words)
                assert len(lines) > 1
                assert all(line.strip() for line in lines), lines
                assert max(map(len, lines)) <= columns, lines
        jobs = on_terminal(shell, 80, "jobs", "list")
        assert any("ValueError" in line and line.endswith("…") for line in jobs), jobs
        queues = on_terminal(shell, 80, "queues")
        assert max(map(len, queues[:4])) <= 80
    assert LONG_TEXT[:100] in shell.say("jobs", "list"), "a pipe has no width"


GATED = """

from umbel import chain

machines = app.pool("machines-with-a-long-name", members=["http://a-host-with-a-long-name"] )

@app.task(pool=machines, limit=3, name="shop.a_task_with_a_long_name", cron="0 3 * * *")
def use() -> None: ...

@app.task(affinity="plan", rate="100/s")
async def planned(plan: str) -> str:
    return plan

@app.workflow(name="shop.a_workflow_with_a_long_name")
def flow(first: int):
    return add.s(add.s(first, 1), 2)
"""


def test_no_line_about_gates_and_schedules_is_wider_than_the_terminal(shell: Shell) -> None:
    code = shell.folder / "tasks.py"
    code.write_text(f"{code.read_text()}{GATED}")
    with shell.worker("--name", "a-worker-with-a-long-name"):
        shell.say("send", "planned", "a key of a route, " * 6, "--wait")
        shell.say("send", "a_task_with_a_long_name", "--wait")
        shell.say("workflows", "start", "a_workflow_with_a_long_name", "1")
        shell.say("schedules", "pause", "shop.a_task_with_a_long_name", "--reason", LONG_TEXT)
        for words in ("pools", "routes", "limits", "schedules", "graphs", "workflows", "queues"):
            for columns in (80, 140):
                lines = on_terminal(shell, columns, words)
                assert len(lines) > 1
                assert max(map(len, lines)) <= columns, lines


def test_ids_are_short_in_tables_and_full_in_json(shell: Shell) -> None:
    first = shell.say("send", "add", "1", "2")
    second = shell.say("send", "add", "1", "2")
    shown = [line.split()[0] for line in shell.say("jobs", "list").splitlines()[1:]]
    assert shown == [second[-8:], first[-8:]]
    assert {job["id"] for job in shell.ask("jobs", "list")} == {first, second}
    for short, full in zip(shown, (second, first), strict=True):
        assert shell.ask("jobs", "show", short)["id"] == full
    assert shell.ask("jobs", "cancel", shown[1]) == {first: "cancelled"}
    assert shell.ask("jobs", "retry", shown[1]) == {"queued": [first]}


def test_an_id_in_a_filtered_list_is_enough_for_other_commands(shell: Shell) -> None:
    shell.say("send", "add", "1", "2")
    mail = shell.say("send", "greet", "Ann")
    (line,) = shell.say("jobs", "list", "--queue", "mail").splitlines()[1:]
    assert shell.ask("jobs", "show", line.split()[0])["id"] == mail


def test_an_ambiguous_beginning_of_an_id_lists_the_candidates(shell: Shell) -> None:
    jobs = [shell.say("send", "add", "1", "2") for _ in range(2)]
    refused = shell.run("jobs", "cancel", jobs[0][:5])
    assert refused.returncode == 1
    assert all(job in refused.stderr for job in jobs)


def test_workers_cancel_takes_the_beginning_of_an_id(shell: Shell) -> None:
    with shell.worker("--name", "anna") as worker:
        job = shell.say("send", "wait", str(shell.folder / "never"))
        worker.wait_for("WAITING")
        shown = shell.say("workers", "health", "anna").splitlines()[-1].split()[0]
        assert shell.ask("workers", "cancel", "anna", shown)["job"] == job


def test_eight_letters_tell_jobs_apart_that_were_published_together(shell: Shell) -> None:
    publish = "import tasks; tasks.app.publish_many([tasks.add.s(1, 2)] * 500); tasks.app.close()"
    subprocess.run([sys.executable, "-c", publish], cwd=shell.folder, env=shell.env, check=True)
    listed = shell.say("jobs", "list", "--limit", "500").splitlines()[1:]
    shown = {line.split()[0] for line in listed}
    # Two random ends may be equal, and all are a letter longer then.
    assert len(shown) == 500
    assert {len(short) for short in shown} <= {8, 9}


def test_a_job_behind_the_newest_thousand_is_found_by_either_end(shell: Shell) -> None:
    old = shell.say("send", "add", "1", "2")
    publish = "import tasks; tasks.app.publish_many([tasks.add.s(1, 2)] * 1001); tasks.app.close()"
    subprocess.run([sys.executable, "-c", publish], cwd=shell.folder, env=shell.env, check=True)
    assert shell.ask("jobs", "show", old[-8:])["id"] == old
    assert shell.ask("jobs", "show", old[:18])["id"] == old
    assert shell.ask("jobs", "show", old[-8:].upper())["id"] == old
    unknown = shell.run("jobs", "show", "not an id")
    assert unknown.returncode == 1
    assert "no job not an id among the 100,000 newest; give the full id" in unknown.stderr


def test_empty_lists_say_so(shell: Shell) -> None:
    assert shell.say("jobs", "list") == "No jobs yet."
    assert shell.say("jobs", "list", "--state", "buried") == "No jobs match."


# --- the layout ------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [*range(1, 90, 7), None])
def test_a_row_is_one_line_of_at_most_the_width(width: int | None) -> None:
    head = ("id", "task", "count", "host", "note")
    rows = [("01a1edea", "shop.send_mail", "12", "世界", LONG_TEXT), ("01a1edeb", "", "", "", "")]
    lines = list(lay_out(head, rows, right=("count",), optional=("host",), width=width))
    assert len(lines) == 3
    widths = {display_width("  ".join(line)) for line in lines}
    assert len(widths) == 1
    # Each column keeps at least one character.
    assert width is None or widths.pop() <= max(width, 4 + 2 * 3)


def test_optional_columns_are_left_out_before_names_are_cut() -> None:
    head, row = ("id", "task", "host", "note"), ("01a1edea", "shop.send_mail", "h" * 30, "")
    wide, narrow = ([*lay_out(head, [row], optional=("host",), width=at)][1] for at in (80, 40))
    assert [cell.strip() for cell in wide] == [*row]
    assert [cell.strip() for cell in narrow] == ["01a1edea", "shop.send_mail", ""]


def test_a_cut_text_ends_with_an_ellipsis() -> None:
    assert [cut("abcdef", width) for width in (6, 5, 1, 0)] == ["abcdef", "abcd…", "…", ""]
    assert cut("世界人", 4) == "世…"


def test_short_ids_are_as_long_as_needed() -> None:
    assert short_ids(["01a1edea-8cdf-7761"]) == {"01a1edea-8cdf-7761": "cdf-7761"}
    found = short_ids(["01a1-8cdf-7761", "01a1-9cdf-7761"], among=["01a2-9cdf-7761"])
    assert found["01a1-8cdf-7761"] == "1-8cdf-7761"
    assert len({*found.values()}) == 3
    assert short_ids(["a", "ba", "ba"]) == {"a": "a", "ba": "ba"}
    assert short_ids([]) == {}
