"""Which workers run other code, and what is said of tasks that take too long."""

from __future__ import annotations

from typing import Any

from umbel.backends import RunTimes, WorkerEntry
from umbel.operations.deploy_analysis import advise, compare_code

PYTHON = "cpython 3.12"
OLD = {"a": "1", "b": "2", "gone": "3"}


def worker(name: str, code: dict[str, str], **changes: Any) -> WorkerEntry:
    given = {"queues": (), "capacity": {"io": 1, "cpu": 1}, "lease": 10.0, "host": "here", "pid": 1}
    given |= {"tasks": tuple(code), "code": code, "python": PYTHON, **changes}
    return WorkerEntry(incarnation=name, name=name, **given)


def test_workers_of_the_same_code_need_no_restart() -> None:
    found = compare_code(OLD, PYTHON, [worker("w1", OLD), worker("w2", OLD)])
    assert (found.changed, found.new, found.removed, found.restart) == ({}, {}, {}, ())


def test_changed_new_and_removed_tasks_are_distinguished() -> None:
    code = {"a": "1", "b": "other", "fresh": "4"}
    found = compare_code(code, PYTHON, [worker("w1", OLD), worker("w2", code)])
    assert found.changed == {"b": ("w1",)}
    assert found.new == {"fresh": ("w1",)}
    assert found.removed == {"gone": 0}
    assert found.restart == ("w1",)


def test_another_version_of_python_cannot_be_compared_and_is_not_called_changed() -> None:
    other = worker("w1", {"a": "x", "b": "y", "gone": "z"}, python="cpython 3.11")
    found = compare_code(OLD, PYTHON, [other, worker("w2", {}, tasks=tuple(OLD))])
    assert (found.changed, found.restart) == ({}, ())
    assert "3.11" in found.incomparable["w1"]
    assert "older" in found.incomparable["w2"]


def test_workers_of_another_application_are_left_out() -> None:
    found = compare_code(OLD, PYTHON, [worker("theirs", {"mail": "9"})])
    assert (found.others, found.restart, found.removed) == (1, (), {})


def times(**changes: Any) -> RunTimes:
    given = {"task": "t", "runs": 100, "long": 50, "p50": 70.0, "p95": 90.0, "worst": 99.0}
    return RunTimes(**{**given, "jobs": (), **changes})


def test_the_advice_goes_by_how_often_it_takes_too_long() -> None:
    as_a_rule = advise(times(), 60.0)
    assert as_a_rule.share == 0.5
    assert "interruptible" in as_a_rule.advice
    now_and_then = advise(times(long=20, p50=3.0), 60.0)
    assert "split" in now_and_then.advice
    hardly_ever = advise(times(long=1, p50=3.0, p95=4.0), 60.0)
    assert "timeout=8" in hardly_ever.advice
