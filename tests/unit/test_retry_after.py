"""The delay of a failed attempt that the task or an HTTP server chooses."""

from __future__ import annotations

from email.message import Message
from typing import Any
from urllib.error import HTTPError

import httpx
import pytest

from umbel import Retry, RetryAfter
from umbel.errors import ConfigurationError
from umbel.tasks.failures import describe, rebuild
from umbel.tasks.retry_after import read_retry_after

NOW = 1_792_234_200.0
"""Sat, 17 Oct 2026 10:50:00 GMT"""
IN_A_MINUTE = "Sat, 17 Oct 2026 10:51:00 GMT"
SIMPLE = Retry(3, first=1, factor=1, jitter=0)


class CaseInsensitive(dict[str, str]):
    """The headers of requests and aiohttp."""

    def get(self, name: str, default: Any = None) -> Any:
        found = (value for key, value in self.items() if key.lower() == name.lower())
        return next(found, default)


class ClientResponseError(Exception):
    """An error of aiohttp: it has the headers itself, or None."""

    def __init__(self, headers: Any) -> None:
        self.headers = headers


class RequestsError(Exception):
    """An error of requests: it has the response, or None."""

    def __init__(self, headers: Any) -> None:
        self.response = None if headers is None else ClientResponseError(headers)


def httpx_error(headers: dict[str, str]) -> Exception:
    request = httpx.Request("GET", "http://127.0.0.1")
    response = httpx.Response(429, headers=headers, request=request)
    return httpx.HTTPStatusError("429", request=request, response=response)


def urllib_error(headers: dict[str, str]) -> Exception:
    message = Message()
    for name, value in headers.items():
        message[name] = value
    return HTTPError("http://127.0.0.1", 503, "busy", message, None)


KINDS = {
    "httpx": httpx_error,
    "urllib": urllib_error,
    "requests": lambda headers: RequestsError(CaseInsensitive(headers)),
    "aiohttp": lambda headers: ClientResponseError(CaseInsensitive(headers)),
    "dictionary": lambda headers: ClientResponseError({k.lower(): headers[k] for k in headers}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "120"}, 120),
        ({"Retry-After": " 1.5 "}, 1.5),
        ({"Retry-After": IN_A_MINUTE}, 60),
        ({"Retry-After": IN_A_MINUTE, "Date": "Sat, 17 Oct 2026 10:50:50 GMT"}, 10),
        ({"Retry-After": IN_A_MINUTE, "Date": "today"}, 60),
        ({"Retry-After": "Sat, 17 Oct 2026 10:00:00 GMT"}, 0),
        ({"Retry-After": "Sat, 17 Oct 2026 10:51:00 -0000"}, 60),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "1e9"}, None),
        ({"Retry-After": ""}, None),
        ({"Date": IN_A_MINUTE}, None),
    ],
)
def test_the_header_of_every_http_library_is_read(
    kind: str, headers: dict[str, str], seconds: float | None
) -> None:
    assert read_retry_after(KINDS[kind](headers), NOW) == seconds


class Hostile(Exception):
    @property
    def response(self) -> None:
        raise RuntimeError("not for you")


@pytest.mark.parametrize(
    "error",
    [
        OSError("no"),
        Hostile(),
        RequestsError(None),
        ClientResponseError(None),
        ClientResponseError("x"),
    ],
)
def test_an_error_without_headers_has_no_delay_of_its_own(error: Exception) -> None:
    assert read_retry_after(error, NOW) is None
    assert SIMPLE.delay_after(error, 1, "job", NOW) == 1


def test_a_header_lengthens_the_wait_up_to_its_maximum_and_never_shortens_it() -> None:
    policy = Retry(3, first=10, factor=1, jitter=0, max_retry_after=600)
    asked = {"0": 10, "9": 10, "60": 60, "601": 600, "99999999999": 600}
    asked |= {"9" * 12: 600, "9" * 400: 600, "9.99999999999": 10}
    for text, seconds in asked.items():
        error = httpx_error({"Retry-After": text})
        assert policy.delay_after(error, 1, "job", NOW) == seconds, text
    assert Retry(1, jitter=0).delay_after(httpx_error({"Retry-After": "7200"}), 1, "", 0) == 3600


def test_jobs_that_a_server_sent_away_together_return_later_and_not_together() -> None:
    error = httpx_error({"Retry-After": "100"})
    waits = [Retry(3).delay_after(error, 1, f"job {n}", NOW) or 0 for n in range(50)]
    assert all(100 <= wait <= 120 for wait in waits)
    assert len(set(waits)) == 50


def test_a_policy_may_ignore_the_header() -> None:
    policy = Retry(3, first=1, jitter=0, max_retry_after=0)
    assert policy.delay_after(httpx_error({"Retry-After": "60"}), 1, "job", NOW) == 1


def test_the_header_does_not_change_which_errors_are_retried_or_how_often() -> None:
    error = httpx_error({"Retry-After": "60"})
    assert Retry(3, on=OSError).delay_after(error, 1, "job", NOW) is None
    assert Retry(3, never=httpx.HTTPError).delay_after(error, 1, "job", NOW) is None
    assert SIMPLE.delay_after(error, 3, "job", NOW) == 60
    assert SIMPLE.delay_after(error, 4, "job", NOW) is None


def test_the_maximum_of_a_call_travels_with_its_message() -> None:
    declared = Retry(on=OSError, max_retry_after=5)
    assert declared.with_numbers(Retry(1, max_retry_after=9).numbers()).max_retry_after == 9
    assert declared.with_numbers({"times": 1}).max_retry_after == 5


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "60", None])
def test_a_wrong_maximum_is_named(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^max_retry_after="):
        Retry(max_retry_after=value)


def test_a_chosen_delay_is_exact_and_bounded_only_by_the_number_of_retries() -> None:
    policy = Retry(2, first=1, cap=5, on=OSError, never=Exception)
    assert [policy.delay_after(RetryAfter(3600), n, "job", NOW) for n in (1, 2, 3)] == [
        *(3600, 3600),
        None,
    ]
    assert Retry(0).delay_after(RetryAfter(0), 1, "job", NOW) is None


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e11, "30", None, True])
def test_a_wrong_chosen_delay_is_named(delay: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^RetryAfter\("):
        RetryAfter(delay)


@pytest.mark.parametrize("error", [RetryAfter(30), RetryAfter(1.5, "the shop is closed")])
def test_a_chosen_delay_is_raised_again_where_the_result_is_read(error: RetryAfter) -> None:
    again = rebuild(describe(error), "job")
    assert isinstance(again, RetryAfter)
    assert (again.delay, str(again)) == (error.delay, str(error))
