"""``umbel jobs list`` by time, error and argument, in pages and within a window."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from integration.command_line import Shell, wait_until


def ids_of(shell: Shell, *filters: str) -> list[str]:
    return [job["id"] for job in shell.ask("jobs", "list", *filters)]


def cursor_in(text: str) -> str:
    found = re.search(r"^  --after (\S+)$", text, re.MULTILINE)
    assert found, text
    return found[1]


@pytest.fixture
def failed(shell: Shell) -> dict[str, str]:
    """The ids of jobs that have finished, by a word of their arguments."""
    with shell.worker():
        jobs = {
            "red": shell.say("send", "fail", "no Red paint"),
            "blue": shell.say("send", "fail", "why=no blue paint"),
            "ann": shell.say("send", "greet", "Ann", "loud=true"),
            "bob": shell.say("send", "greet", "name=Bob"),
        }
        wait_until(lambda: all(job["finished"] for job in shell.ask("jobs", "list")))
    return jobs


def test_jobs_are_listed_by_error_and_argument(shell: Shell, failed: dict[str, str]) -> None:
    assert set(ids_of(shell, "--error", "valueerror: NO")) == {failed["red"], failed["blue"]}
    assert ids_of(shell, "--error", "red paint") == [failed["red"]]
    assert ids_of(shell, "--argument", "name=Ann") == [failed["ann"]], "given by position"
    assert ids_of(shell, "--argument", "name=Bob") == [failed["bob"]], "given by name"
    assert ids_of(shell, "--argument", "loud=true") == [failed["ann"]]
    assert ids_of(shell, "--argument", "BLUE") == [failed["blue"]], "a part of any argument"
    assert ids_of(shell, "--argument", "name=An") == []
    assert ids_of(shell, "--argument", "name=Ann", "--argument", "loud=false") == []
    assert ids_of(shell, "--argument", "paint", "--error", "blue") == [failed["blue"]]
    assert shell.say("jobs", "list", "--argument", "nothing has this") == "No jobs match."


def test_jobs_are_listed_by_time(shell: Shell, failed: dict[str, str]) -> None:
    jobs = {job["id"]: job for job in shell.ask("jobs", "list")}
    everything = [*jobs]
    assert ids_of(shell, "--since", "1h") == everything
    assert ids_of(shell, "--until", "1h") == []
    last = datetime.fromisoformat(jobs[everything[0]]["finished"])
    after = (last + timedelta(milliseconds=1)).isoformat()
    assert ids_of(shell, "--since", after) == []
    assert ids_of(shell, "--until", after) == everything
    queued = shell.say("send", "add", "1", "2")
    published = datetime.fromisoformat(shell.ask("jobs", "show", queued)["created"])
    earlier = (published - timedelta(milliseconds=1)).astimezone(UTC).isoformat()
    assert ids_of(shell, "--since", earlier) == [queued], "a live job counts by its publication"


def test_pages_have_every_job_once(shell: Shell, failed: dict[str, str]) -> None:
    queued = [shell.say("send", "add", "1", str(number)) for number in range(3)]
    everything = ids_of(shell)
    assert everything == [*queued[::-1], *everything[3:]]
    assert len(everything) == 7
    seen: list[str] = []
    after: tuple[str, ...] = ()
    while True:
        page = shell.run("jobs", "list", "--limit", "2", *after, "--json")
        assert page.returncode == 0, page.stderr
        jobs: list[dict[str, Any]] = json.loads(page.stdout)
        seen += [job["id"] for job in jobs]
        if "--after" not in page.stderr:
            break
        assert jobs[-1]["cursor"] == cursor_in(page.stderr)
        after = ("--after", cursor_in(page.stderr))
    assert seen == everything
    shown = shell.run("jobs", "list", "--limit", "2")
    assert "There are more jobs" in shown.stderr
    assert "more jobs" not in shell.run("jobs", "list", "--limit", "7").stderr


@pytest.mark.parametrize("wanted", [("--argument", "Red"), ("--task", "fail")])
def test_a_search_stops_after_its_window_and_says_how_to_continue(
    shell: Shell, failed: dict[str, str], wanted: tuple[str, ...]
) -> None:
    shell.say("jobs", "retry", failed["red"])  # so that it finishes last
    with shell.worker():
        wait_until(lambda: all(job["finished"] for job in shell.ask("jobs", "list")))
        for number in range(3):
            shell.say("send", "add", "1", str(number), "--wait")
    stopped = shell.run("jobs", "list", *wanted, "--window", "3")
    assert stopped.stdout.strip() == "No jobs match."
    assert "Stopped after reading 3 jobs" in stopped.stderr
    rest = ("--window", "100", "--after", cursor_in(stopped.stderr))
    assert ids_of(shell, *wanted, *rest)[0] == failed["red"]
    whole = shell.run("jobs", "list", *wanted)
    assert "Stopped" not in whole.stderr


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("--since", "yesterday"), "--since 'yesterday' is not a time: write 90s"),
        (("--until", "2026-13-01"), "--until '2026-13-01' is not a time"),
        (("--after", "x"), "after='x' is not a cursor"),
        (("--error", " "), "empty"),
        (("--argument", ""), "empty"),
        (("--window", "0"), "--window"),
    ],
)
def test_a_filter_that_cannot_be_read_is_refused(
    shell: Shell, words: tuple[str, ...], remedy: str
) -> None:
    refused = shell.run("jobs", "list", *words)
    assert refused.returncode != 0
    assert remedy in refused.stderr
    assert refused.stdout == ""
