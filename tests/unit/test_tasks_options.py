"""Options and policies: checked when made, and the error names the field."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from umbel.errors import ConfigurationError
from umbel.tasks import CallOptions, Retry, TaskOptions, Track, Unique, task

NUMBERS = [0, -1, math.nan, math.inf, 1e11, 10**400, "5", True]
BEYOND = [
    datetime.max,
    datetime.max.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
]
"""Moments that no message can carry."""
SHARED: dict[str, list[Any]] = {
    "queue": ["", "x" * 256, "a\x00b", 5],
    "priority": [1.5, "high", True, 40_000, -40_000],
    "timeout": NUMBERS,
    "keep": NUMBERS,
    "delay": [-1, math.nan, 1e11, 10**400, "5", True],
    "expires": [*NUMBERS, *BEYOND],
    "retry": ["often", 1.5, True, -1],
    "track": ["everything", 5],
}
TASK: dict[str, list[Any]] = SHARED | {
    "loop": ["gevent", 5],
    "max_deaths": [0, -1, "3", 1.5, 40_000],
}


def cases(fields: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(field, value) for field, bad in fields.items() for value in bad]


@pytest.mark.parametrize(("field", "value"), cases(TASK))
def test_a_wrong_option_of_a_task_is_named(field: str, value: Any) -> None:
    named = "times" if (field, value) == ("retry", -1) else field
    with pytest.raises(ConfigurationError, match=f"^{named}"):
        TaskOptions(**{field: value})


@pytest.mark.parametrize(("field", "value"), cases(SHARED))
def test_a_wrong_option_of_a_call_is_named(field: str, value: Any) -> None:
    named = "times" if (field, value) == ("retry", -1) else field
    with pytest.raises(ConfigurationError, match=f"^{named}"):
        CallOptions(**{field: value})


def test_the_defaults_are_valid() -> None:
    assert TaskOptions().retry.times == 5
    assert CallOptions() == CallOptions()


def test_short_forms_are_accepted() -> None:
    assert TaskOptions(retry=3).retry.times == 3  # type: ignore[arg-type]
    assert TaskOptions(track="state").track is Track.STATE  # type: ignore[arg-type]
    assert CallOptions(retry=0).retry.times == 0  # type: ignore[arg-type, union-attr]


def test_a_moment_is_an_expiry() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert TaskOptions(expires=moment).expires == CallOptions(expires=moment).expires == moment


@pytest.mark.parametrize("moment", BEYOND)
def test_a_moment_that_no_message_can_carry_is_refused_and_named(moment: datetime) -> None:
    with pytest.raises(ConfigurationError, match=r"^not_before=.*9999-12-31.*leave not_before out"):
        CallOptions(not_before=moment)


@pytest.mark.parametrize("moment", [datetime.min, datetime(9999, 12, 31, 23, 59, 59)])
def test_the_first_and_the_last_moment_that_a_message_can_carry_are_accepted(
    moment: datetime,
) -> None:
    assert CallOptions(not_before=moment, expires=moment).expires == moment


def test_a_delay_and_a_moment_together_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="delay and not_before"):
        CallOptions(delay=5, not_before=datetime(2030, 1, 1, tzinfo=UTC))


def test_an_unknown_option_is_refused_with_those_there_are() -> None:
    expected = r"prority: not an option of a call; did you mean priority\? .* queue, priority"
    with pytest.raises(ConfigurationError, match=expected):
        CallOptions().merged({"prority": 5})


def test_merged_options_are_checked_and_leave_the_old_ones_alone() -> None:
    first = CallOptions(priority=1)
    assert first.merged({"queue": "mail"}) == CallOptions(priority=1, queue="mail")
    with pytest.raises(ConfigurationError, match=r"^queue"):
        first.merged({"queue": ""})
    assert first == CallOptions(priority=1)


@pytest.mark.parametrize("times", [-1, 1.5, "3", True, 2_000_000])
def test_a_wrong_number_of_retries_is_named(times: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^times="):
        Retry(times)


def test_a_retry_gives_waits_until_its_tries_are_used_up() -> None:
    policy = Retry(2, first=1, factor=2, jitter=0)
    assert [policy.delay(tries, "job") for tries in (1, 2, 3)] == [1, 2, None]
    assert Retry(0).delay(1, "job") is None


def test_a_retry_applies_to_its_errors_only() -> None:
    policy = Retry(on=(OSError, KeyError), never=FileNotFoundError)
    assert policy.applies_to(ConnectionError())
    assert policy.applies_to(KeyError())
    assert not policy.applies_to(FileNotFoundError())
    assert not policy.applies_to(ValueError())


def test_the_numbers_of_a_retry_travel_and_its_errors_stay() -> None:
    sent = Retry(7, first=3, factor=1.5, cap=9, jitter=0)
    got = Retry(on=OSError, never=KeyError).with_numbers(sent.numbers())
    assert (got.times, got.on, got.never) == (7, OSError, KeyError)
    assert got.backoff == sent.backoff


@pytest.mark.parametrize("key", ["", "x" * 256, 5, None, "a\x00b"])
def test_a_wrong_unique_key_is_named(key: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^unique="):
        Unique(key)


def test_a_wrong_conflict_rule_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"^on_conflict="):
        Unique("x", on_conflict="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["x" * 256, "a\x00b"])
def test_a_task_name_no_store_can_keep_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        task(name=name)(lambda: None)


def test_a_time_to_keep_what_is_not_kept_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^keep and track="):
        TaskOptions(keep=60, track=Track.FAILURES)
