"""An unknown option of a task or a call is refused with the option to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from umbel import Umbel
from umbel.errors import ConfigurationError
from umbel.tasks import task

DECLARING: list[Any] = [task, Umbel("sqlite:///:memory:").task]


@pytest.mark.parametrize("declare", DECLARING, ids=["free", "app"])
@pytest.mark.parametrize(
    ("wrong", "right"), [("qeue", "queue"), ("Queue", "queue"), ("time_out", "timeout")]
)
def test_a_misspelled_option_is_named_with_the_nearest_one(
    declare: Any, wrong: str, right: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{wrong}: .* did you mean {right}\?"):
        declare(**{wrong: "x"})


@pytest.mark.parametrize("declare", DECLARING, ids=["free", "app"])
@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("retries", "retry=3"),
        ("max_retries", "retry=3"),
        ("autoretry_for", "on=ConnectionError"),
        ("countdown", "delay=30"),
        ("eta", "not_before="),
        ("time_limit", "timeout=30"),
        ("job_timeout", "timeout=30"),
        ("bind", "from umbel import current"),
        ("acks_late", "max_deaths=1"),
        ("rate_limit", 'rate="10/s"'),
        ("ignore_result", 'track="state"'),
        ("queue_name", 'queue="mail"'),
    ],
)
def test_an_option_of_another_library_is_translated(declare: Any, wrong: str, right: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{wrong}: ") as raised:
        declare(**{wrong: 3})
    assert right in str(raised.value)


def test_an_option_that_resembles_none_gets_the_list_of_all() -> None:
    with pytest.raises(ConfigurationError, match=r"^zzz: .*name, queue, priority, delay"):
        task(zzz=1)  # type: ignore[call-overload]


def test_an_unknown_option_of_a_call_is_translated_too() -> None:
    @task
    def add(a: int, b: int) -> int:
        return a + b

    with pytest.raises(ConfigurationError, match=r"^countdown: not an option of a call.*delay=30"):
        add.options(countdown=5)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"did you mean priority\?"):
        add.options(prioritty=5)  # type: ignore[call-arg]


def test_a_name_in_place_of_the_function_is_corrected() -> None:
    with pytest.raises(ConfigurationError, match=r"write name='mail'"):
        task("mail")  # type: ignore[call-overload]
