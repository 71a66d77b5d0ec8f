"""``umbel top`` on a real terminal: panes, keys, actions, hostile text, an unreachable store."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.browsing import bury
from integration.conftest import Place, working
from integration.running import ask, until
from integration.terminal_screen import TerminalScreen, umbel_top
from umbel import Umbel
from umbel.messages import State, fresh_id

HOSTILE = "\x1b]0;owned\x07\x1b[5mEVIL\x9b8m\u202eRLO\u2066\x7f\x08\u2028\x85<script>"
ENTER, ESCAPE, TAB, BACK_TAB, DOWN, UP = "\r", "\x1b", "\t", "\x1b[Z", "\x1b[B", "\x1b[A"


@contextmanager
def top(app: Umbel, folder: Path, *options: str, **settings: Any) -> Iterator[TerminalScreen]:
    url, namespace = app.settings.broker, app.settings.namespace
    with umbel_top(url, namespace, folder, *options, **settings) as screen:
        yield screen


def test_keys_lead_from_a_task_to_the_traceback_of_a_job_and_act_on_it(
    app: Umbel, tmp_path: Path
) -> None:
    [job] = bury(app)
    with top(app, tmp_path) as screen:
        screen.wait_for("QUEUES", "WORKERS", "TASKS", "buried 1", "No workers are running.")
        screen.press(TAB, TAB)
        screen.wait_for("> shop.charge", "100%", "ValueError: card")
        screen.press(ENTER)
        screen.wait_for("task shop.charge", f"> buried     {job[-8:]}")
        screen.press(ENTER)
        screen.wait_for(f"buried  shop.charge  {job}", 'arguments   {"args":[0,"4711"]')
        screen.press(ENTER)
        screen.wait_for("Traceback (most recent call last)", "order 0 was declined")
        screen.press("r")
        screen.wait_for("Queue this job again? y/N")
        screen.press("n")
        screen.wait_for("Nothing was changed.")
        assert app.handle(job).state is State.BURIED
        screen.press("r")
        screen.wait_for("y/N")
        screen.press("y")
        screen.wait_for("1 job was queued again.")
        assert app.handle(job).state is State.QUEUED
        screen.press("r")
        screen.wait_for("This job is not buried.")
        screen.press(ESCAPE)
        screen.wait_for("queued  shop.charge", "No running worker serves the queue default")
        screen.press("c")
        screen.wait_for("Cancel this job? y/N")
        screen.press("y")
        screen.wait_for("1 job was cancelled.", "cancelled  shop.charge")
        screen.press(ESCAPE)
        screen.wait_for("> cancelled")
        screen.press(ESCAPE)
        screen.wait_for("> shop.charge")
        assert screen.quit() == 0
    lines, _ = ask(app, lambda operations: operations.audit.read())
    assert [(line.action, line.address) for line in lines] == [
        ("cancel", "umbel top"),
        ("retry", "umbel top"),
    ]
    assert all(line.user for line in lines)


def test_the_queues_have_the_rates_of_their_jobs(shop: Umbel, tmp_path: Path) -> None:
    add, charge = shop.registry.find("shop.add"), shop.registry.find("shop.charge")
    jobs = [add.options(queue="mail").delay(n, n) for n in range(45)]
    jobs += [charge.options(queue="slow").delay(n, "") for n in range(60)]
    with working(shop, queues=("mail", "slow", "idle")):
        until(lambda: all(job.state.finished for job in jobs), "the jobs")

    def rates() -> dict[str, tuple[float, float]]:
        found = ask(shop, lambda operations: operations.charts("15m")).queues
        return {one.queue: (one.succeeded, one.failed) for one in found}

    ask(shop, lambda operations: operations.pause("queue", "idle", ""))
    ask(shop, lambda operations: operations.pause("queue", "mail", ""))
    ask(shop, lambda operations: operations.pause("queue", "slow", ""))
    with top(shop, tmp_path) as screen:
        # The half minute that has ended last, as in the second line of the screen.
        until(lambda: rates() == {"mail": (1.5, 0.0), "slow": (0.0, 2.0)}, "the rates")
        screen.wait_for("ok 1.5/s", "failed 2.0/s", "ok/s fail/s workers")
        columns = {row[2:].split()[0]: row.split() for row in screen.rows if "paused" in row}
        assert {name: row[-4:-2] for name, row in columns.items()} == {
            "mail": ["1.5", "0"],
            "slow": ["0", "2.0"],
            "idle": ["0", "0"],
        }


def test_a_key_that_was_pressed_before_the_question_was_shown_does_not_answer_it(
    shop: Umbel, tmp_path: Path
) -> None:
    [job] = bury(shop)
    with top(shop, tmp_path) as screen:
        screen.wait_for("shop.charge", "100%")
        screen.press(TAB, TAB)
        screen.wait_for("> shop.charge")
        screen.press("ry")  # in one write
        screen.wait_for("A key was pressed before the question was shown")
        screen.press("y")
        screen.press("r")
        screen.wait_for("Queue 1 buried job of the task shop.charge again? y/N")
        assert shop.handle(job).state is State.BURIED
        screen.press("y")
        screen.wait_for("1 job was queued again.")


def test_queues_workers_and_tasks_are_paused_and_their_jobs_cancelled_and_retried(
    shop: Umbel, tmp_path: Path
) -> None:
    bury(shop, 3)
    waiting = [shop.registry.find("shop.count").delay(n) for n in range(2)]
    with working(shop), top(shop, tmp_path) as screen:
        until(lambda: all(h.state is State.SUCCEEDED for h in waiting), "the jobs")
        screen.wait_for("> default")
        screen.press("p")
        screen.wait_for("Pause the queue default (0 jobs wait)? y/N")
        screen.press("y")
        screen.wait_for("Paused the queue default.")
        screen.press(TAB)
        screen.wait_for("paused")
        shop.registry.find("shop.add").delay(1, 2)
        screen.press(BACK_TAB)
        screen.wait_for("queued 1 ")
        screen.press("c")
        screen.wait_for("Cancel 1 waiting job of the queue default? y/N")
        screen.press("y")
        screen.wait_for("1 job was cancelled.")
        screen.press("p")
        screen.wait_for("Resume the queue default? y/N")
        screen.press("y")
        screen.wait_for("Resumed the queue default.")
        screen.press("r")
        screen.wait_for("Queue 3 buried jobs of the queue default again? y/N")
        screen.press("y")
        screen.wait_for("3 jobs were queued again.")
        screen.press(TAB, "p")
        screen.wait_for("Pause the worker", "running jobs go on")
        screen.press("y")
        screen.wait_for("Paused the worker")
        screen.press("r")
        screen.wait_for("Choose a queue, a task or a job")


def test_of_two_operators_the_second_is_told_that_nothing_was_changed(
    shop: Umbel, tmp_path: Path
) -> None:
    [job] = bury(shop)
    with top(shop, tmp_path) as screen:
        screen.wait_for("shop.charge")
        screen.press(TAB, TAB)
        screen.wait_for("> shop.charge")
        screen.press("r")
        screen.wait_for("Queue 1 buried job of the task shop.charge again? y/N")
        ask(shop, lambda operations: operations.retry([job]))
        screen.press("y")
        screen.wait_for("No job was changed: another operator or a worker was faster.")


def test_a_filter_a_sort_and_the_help(shop: Umbel, tmp_path: Path) -> None:
    for queue in ("mail", "images", "images"):
        shop.registry.find("shop.add").options(queue=queue).delay()
    with top(shop, tmp_path) as screen:
        screen.wait_for("mail", "images", "! ", "more (key !)")
        screen.press("s")
        screen.wait_for("Sorted by queued.")
        assert screen.text.index("images   ") < screen.text.index("mail  ")
        screen.press("f", "i", "m", "a")
        screen.wait_for("filter: ima_")
        screen.wait_until_gone("mail  ")
        screen.press(ENTER)
        screen.wait_for("QUEUES ~ima", "> images")
        screen.press(ESCAPE)
        screen.wait_for("mail  ")
        screen.press("!")
        screen.wait_for("No worker serves the queue mail; 1 job waits.", "worker --queues mail")
        screen.press(ESCAPE, "?")
        screen.wait_for("Tab, Shift-Tab", "Ctrl-C")
        screen.press("x", "\x03")  # Ctrl-C, which is a key here
        until(lambda: screen.process.poll() is not None, "the end")


def test_hostile_text_is_shown_and_never_executed(sqlite: Place, tmp_path: Path) -> None:
    app = sqlite.app()
    event = {
        "specversion": "1.0",
        "id": fresh_id(),
        "type": "umbel.command",
        "source": "/test",
        "subject": f"shop.{HOSTILE}",
        "data": {"args": [HOSTILE + "x" * 1_000_000], "kwargs": {}},
    }
    handle = app.publish_event(json.dumps(event).encode())
    with working(app):
        until(lambda: handle.state is State.BURIED, "the job to be buried")
    ask(app, lambda operations: operations.pause("task", HOSTILE, HOSTILE))
    app.publish_event(json.dumps(event | {"id": fresh_id(), "subject": HOSTILE}).encode())
    with top(app, tmp_path) as screen:
        screen.wait_for("> ", "buried 1")
        screen.press(ENTER)
        screen.wait_for("<script>", "> queued", "  buried")
        screen.press("f", *HOSTILE.replace("\x1b", "").replace("\x7f", "").replace("\x08", ""))
        screen.wait_for("filter: ")
        screen.press(ESCAPE, DOWN, ENTER)
        screen.wait_for("arguments   ", "EVIL")
        screen.press(ENTER)
        screen.wait_for("attempt 1")
        assert screen.quit() == 0
    # The terminal of the test refuses every control sequence that is not one of Umbel's own.
    assert "\u202e" not in screen.written


def test_an_unreachable_store_is_named_with_its_time_and_the_screen_recovers(
    distant: Place, proxy: Any, tmp_path: Path
) -> None:
    app = distant.app()
    with top(app, tmp_path) as screen:
        screen.wait_for("● live", "QUEUES")
        proxy.cut()
        screen.wait_for("○ no store", "! The store is unreachable since ", "trying again")
        assert re.search(r"since \d\d:\d\d:\d\d", screen.text)
        assert "QUEUES" in screen.text  # the last data stay
        screen.press("p")
        proxy.mend()
        screen.wait_for("● live")
        assert screen.quit() == 0


def test_it_starts_while_the_store_is_away(distant: Place, proxy: Any, tmp_path: Path) -> None:
    app = distant.app()
    ask(app, lambda operations: operations.queues())
    proxy.cut()
    with top(app, tmp_path) as screen:
        screen.wait_for("! The store is unreachable since ")
        proxy.mend()
        screen.wait_for("● live", "QUEUES")


@pytest.mark.parametrize(
    ("options", "env"), [(("--ascii", "--no-color"), {}), (("--ascii",), {"NO_COLOR": "1"})]
)
def test_it_needs_neither_symbols_nor_colours(
    shop: Umbel, tmp_path: Path, options: tuple[str, ...], env: dict[str, str]
) -> None:
    shop.registry.find("shop.add").options(queue="größe").delay()
    with top(shop, tmp_path, *options, **env) as screen:
        screen.wait_for("* live", "gr\\xf6\\xdfe")
        assert screen.quit() == 0
    assert screen.written.isascii()
    assert not re.search(r"\x1b\[(?:\d+;)*(?:3\d|9\d|4\d|10\d)(?:;\d+)*m", screen.styles)


def test_it_follows_the_size_of_the_terminal(shop: Umbel, tmp_path: Path) -> None:
    with top(shop, tmp_path) as screen:
        screen.wait_for("QUEUES", "Tab pane")
        assert all(len(row) <= 80 for row in screen.rows)
        screen.resize(30, 8)
        screen.wait_for("40x12 characters are needed.")
        screen.resize(132, 43)
        screen.wait_for("QUEUES", "Tab pane")
        assert max(map(len, screen.rows)) > 80


def test_without_a_terminal_it_prints_one_screen_or_json(shop: Umbel, tmp_path: Path) -> None:
    shop.registry.find("shop.add").delay(1, 2)
    env = {"UMBEL_URL": shop.settings.broker, "UMBEL_NAMESPACE": shop.settings.namespace}

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "umbel", "top", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    text = run()
    assert "\x1b" not in text
    assert "default" in text
    assert "No workers are running." in text
    document = json.loads(run("--json"))
    assert document["totals"]["queued"] == 1
    assert document["problems"][0]["text"] == "No workers are running."


@pytest.mark.skipif(shutil.which("tmux") is None, reason="not run: there is no tmux")
def test_it_fits_into_80_by_24_in_tmux(shop: Umbel, tmp_path: Path) -> None:
    bury(shop)
    server = ["tmux", "-L", f"umbel-{fresh_id()}", "-f", "/dev/null"]
    env = f"UMBEL_URL='{shop.settings.broker}' UMBEL_NAMESPACE={shop.settings.namespace}"
    command = f"cd {tmp_path} && {env} {sys.executable} -m umbel top"

    def tmux(*words: str) -> str:
        done = subprocess.run([*server, *words], capture_output=True, text=True, check=True)
        return done.stdout

    tmux("new-session", "-d", "-x", "80", "-y", "24", command)
    try:
        until(lambda: "shop.charge" in tmux("capture-pane", "-p"), "the screen")
        lines = tmux("capture-pane", "-p").rstrip("\n").split("\n")
        assert len(lines) == 24
        assert max(map(len, lines)) <= 80
        assert lines[0].startswith("umbel top  ")
        assert lines[0].endswith("● live 1 s")
        assert lines[-1].startswith("Tab pane")
        assert [line.split()[1] for line in lines if line.startswith("─ ")] == [
            *("QUEUES", "WORKERS", "TASKS")
        ]
    finally:
        tmux("kill-server")
