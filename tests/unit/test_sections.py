"""Sections mark the failures that pass through them, and the worker decides by the mark."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from umbel.errors import ConfigurationError, UmbelError
from umbel.messages import Lease
from umbel.tasks import Job, Run, Section, current, optional, poisonous, retry, running


@pytest.fixture
def run() -> Iterator[Run]:
    job = Job(id="j", task="tests.it", queue="default", attempt=1)
    made = Run(job, Lease("j", "me", 1), lambda done, of: None)
    token = running.set(made)
    yield made
    running.reset(token)


def fail_in(section: object, error: BaseException) -> None:
    with section:  # type: ignore[attr-defined]
        raise error


def test_a_failure_in_a_retry_section_carries_its_policy(run: Run) -> None:
    error = OSError("down")
    with pytest.raises(OSError, match="down"):
        fail_in(retry(3, name="mail", first=7), error)
    mark = run.mark_of(error)
    assert isinstance(mark, Section)
    assert mark.name == "mail"
    assert mark.policy is not None
    assert (mark.policy.times, mark.policy.backoff.first) == (3, 7)


def test_a_failure_in_a_poisonous_section_is_final(run: Run) -> None:
    error = ValueError("x")
    with pytest.raises(ValueError, match="x"):
        fail_in(poisonous(), error)
    assert run.mark_of(error).policy is None


def test_an_error_is_marked_with_the_innermost_section(run: Run) -> None:
    error = ValueError("x")
    with pytest.raises(ValueError, match="x"), poisonous(), retry(name="outer"):
        fail_in(retry(name="inner"), error)
    assert run.mark_of(error).name == "inner"


def test_another_error_is_not_marked(run: Run) -> None:
    with pytest.raises(ValueError, match="x"):
        fail_in(poisonous(), ValueError("x"))
    assert run.mark_of(ValueError("x")) is None


def test_being_cancelled_is_no_failure_of_a_section(run: Run) -> None:
    for error in (asyncio.CancelledError(), KeyboardInterrupt(), SystemExit()):
        with pytest.raises(type(error)):
            fail_in(retry(), error)
        assert run.mark_of(error) is None


def test_a_section_that_ends_well_leaves_no_mark(run: Run) -> None:
    with retry(), poisonous():
        pass
    assert run.marks == []


def test_sections_work_in_a_plain_call_outside_a_worker() -> None:
    with pytest.raises(ValueError, match="x"):
        fail_in(retry(), ValueError("x"))


def test_a_section_is_named_by_where_it_stands(run: Run) -> None:
    def first() -> None:
        with retry():
            raise ValueError("x")

    names = set()
    for _ in range(2):
        with pytest.raises(ValueError, match="x") as caught:
            first()
        names.add(run.mark_of(caught.value).name)
    (name,) = names
    assert "first" in name
    assert name.rpartition(":")[2].isdigit()


@pytest.mark.parametrize("wrong", [{"times": -1}, {"first": -1}, {"factor": 0}])
def test_a_wrong_number_of_a_section_is_named(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=f"^{next(iter(wrong))}="):
        retry(**wrong)  # type: ignore[arg-type]


def test_an_optional_section_is_skipped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        fail_in(optional(), ValueError("x"))
    assert caplog.records[0].exc_info is not None


def test_an_optional_section_skips_its_own_errors_only() -> None:
    fail_in(optional(KeyError, OSError), FileNotFoundError())
    with pytest.raises(ValueError, match="x"):
        fail_in(optional(KeyError, OSError), ValueError("x"))


def test_an_optional_section_does_not_swallow_being_cancelled() -> None:
    with pytest.raises(asyncio.CancelledError):
        fail_in(optional(), asyncio.CancelledError())


@pytest.mark.parametrize("wrong", [5, "ValueError", int, BaseException, ValueError("x")])
def test_an_optional_section_takes_exception_classes(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="optional"):
        optional(wrong)  # type: ignore[arg-type]


def test_current_shows_the_job_that_runs(run: Run) -> None:
    assert (current.job.id, current.lease.fence) == ("j", 1)


def test_current_outside_a_job_says_so() -> None:
    with pytest.raises(UmbelError, match="no job runs here"):
        _ = current.job


def test_a_checkpoint_raises_what_stops_the_task(run: Run) -> None:
    current.checkpoint()
    run.stop_reason = TimeoutError("too long")
    with pytest.raises(TimeoutError, match="too long"):
        current.checkpoint()
