"""Exceptions as data, and back."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.errors import JobFailed, RemoteTraceback
from umbel.messages import Failure
from umbel.tasks.failures import describe, rebuild


class Simple(Exception):
    pass


class Picky(Exception):
    """Cannot be built from its own ``args``."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}: {detail}")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class NotText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class Stop(BaseException):
    pass


def caught(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:
        return raised


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), KeyError("k"), Simple("a", 1, None, [2]), OSError(2, "gone"), Simple()],
)
def test_an_exception_is_built_again_with_its_class_and_arguments(error: Exception) -> None:
    again = rebuild(describe(caught(error)), "j")
    assert type(again) is type(error)
    assert again.args == error.args
    assert str(again) == str(error)


def test_the_workers_traceback_is_the_cause() -> None:
    again = rebuild(describe(caught(ValueError("no"))), "j")
    assert isinstance(again.__cause__, RemoteTraceback)
    assert "in caught" in str(again.__cause__)
    assert "ValueError: no" in str(again.__cause__)


@pytest.mark.parametrize(
    "error",
    [
        Picky(3, detail="x"),
        Simple(object()),
        ExceptionGroup("many", [ValueError("a")]),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        Stop("stop"),
        SystemExit(3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_cannot_be_rebuilt_is_a_job_failed_with_the_history(
    error: BaseException,
) -> None:
    again = rebuild(describe(caught(error)), "job-7")
    assert type(again) is JobFailed
    assert "job-7" in str(again)
    assert type(error).__name__ in str(again)


def test_a_class_defined_in_a_function_is_a_job_failed() -> None:
    class Local(Exception):
        pass

    assert type(rebuild(describe(caught(Local("x"))), "j")) is JobFailed


@pytest.mark.parametrize("kind", [Unprintable, NotText])
def test_an_exception_whose_text_raises_is_described_all_the_same(kind: type[Exception]) -> None:
    failure = describe(caught(kind()))
    assert kind.__name__ in failure.message
    assert failure.traceback
    rebuild(failure, "j")


@given(text=st.text(st.characters()))
def test_a_description_can_always_be_written_down(text: str) -> None:
    failure = describe(caught(ValueError(text)))
    assert msgspec.json.decode(msgspec.json.encode(failure), type=Failure) == failure


def test_text_that_is_no_unicode_is_described_so_that_it_can_be_written_down() -> None:
    msgspec.json.encode(describe(caught(ValueError("bad name: \udcff"))))


def test_long_texts_are_cut() -> None:
    failure = describe(caught(ValueError("x" * 100_000)))
    assert len(failure.message) == 4_000
    assert len(failure.traceback) <= 20_000
    assert failure.args is None


def test_an_exception_without_a_traceback_is_described() -> None:
    assert "ValueError: no" in describe(ValueError("no")).traceback


def test_a_record_cannot_make_a_process_import_anything() -> None:
    assert "this" not in sys.modules
    rebuild(Failure("this:Zen", "x", "", "[]"), "j")
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    "failure",
    [
        Failure("os:system", "x", "", '["true"]'),
        Failure("builtins:eval", "x", "", '["1"]'),
        Failure("builtins:int", "1", "", "[1]"),
        Failure("nonsense", "x", "", "[]"),
        Failure("", "", "", ""),
        Failure("builtins:ValueError", "x", "", "not json"),
        Failure("builtins:ValueError", "x", "", "5"),
        Failure("builtins:ValueError", "another text", "", '["x"]'),
        Failure("builtins:ValueError", "x", "", None),
    ],
)
def test_a_forged_or_broken_record_is_a_job_failed(failure: Failure) -> None:
    assert type(rebuild(failure, "j")) is JobFailed


@given(fields=st.tuples(st.text(), st.text(), st.text(), st.none() | st.text()))
def test_any_record_gives_an_exception_to_raise(fields: tuple[Any, ...]) -> None:
    assert isinstance(rebuild(Failure(*fields), "j"), Exception)
