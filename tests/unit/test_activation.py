"""From a delivery to something that can run, or to the outcome that names what is wrong."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any, cast

import msgspec
import pytest

from umbel import Retry
from umbel.messages import (
    JSON,
    MESSAGEPACK,
    PICKLE,
    Body,
    BodyCodec,
    Delivery,
    Envelope,
    Expired,
    Interrupted,
    Lease,
    Rejected,
    inbox,
)
from umbel.tasks import Registry, Track, task
from umbel.worker.activation import Activator
from umbel.worker.incarnation import Incarnation
from umbel.worker.progress import ProgressNotes
from umbel.worker.runs import Activation

JOB = "01890000-0000-7000-8000-000000000001"
NOW = 1_000.0


@task(name="tests.add", retry=Retry(7), timeout=9, track="state")
def add(a: int, b: int = 0) -> int:
    return a + b


@task(name="tests.take_all")
async def take_all(*rest: int, **named: str) -> None: ...


@task(name="tests.typed")
def typed(day: dt.date, key: uuid.UUID) -> None: ...


def activate(
    data: Any = None,
    *,
    body: Body | None = None,
    subject: str = "tests.add",
    headers: dict[str, str] | None = None,
    now: float = NOW,
    **envelope: Any,
) -> Any:
    """What becomes of a delivery that carries this."""
    registry = Registry()
    for known in (add, take_all, typed):
        registry.add(known)
    if body is None:
        body = Body(JSON, msgspec.json.encode({"args": [1, 2]} if data is None else data))
    made = Envelope(id=JOB, subject=subject, body=body, headers=headers or {}, **envelope)
    lease = Lease(JOB, "life", 4)
    delivery = Delivery(envelope=made, lease=lease, attempt=3, deaths=1, claimed=now)
    return Activator(
        registry,
        BodyCodec(limit=5_000),
        incarnation=Incarnation("worker"),
        progress=ProgressNotes(cast(Any, None)),
    ).activate(delivery)


def rejected(outcome: Any) -> str:
    """The reason of a rejection, and nothing else."""
    assert isinstance(outcome, Rejected), outcome
    return outcome.reason


# --- what fits -------------------------------------------------------------------------------


def test_a_good_message_becomes_a_call_with_the_tasks_own_options() -> None:
    made = activate()
    assert isinstance(made, Activation)
    assert (made.task.name, made.args, made.kwargs) == ("tests.add", [1, 2], {})
    assert (made.retry.times, made.timeout, made.track) == (7, 9, Track.STATE)


def test_the_task_sees_the_delivery_it_runs_for() -> None:
    job = activate(queue="mail", priority=5, created=12.0, traceparent="00-a-b-01").run.job
    assert (job.id, job.task, job.queue) == (JOB, "tests.add", "mail")
    assert (job.attempt, job.deaths) == (3, 1)
    assert (job.priority, job.created, job.traceparent) == (5, 12.0, "00-a-b-01")


def test_the_task_sees_the_lease_it_runs_under() -> None:
    assert activate().run.lease == Lease(JOB, "life", 4)


@pytest.mark.parametrize(
    ("data", "args", "kwargs"),
    [
        ({"args": [1, 2]}, [1, 2], {}),
        ({"args": [1]}, [1], {}),
        ({"kwargs": {"a": 1, "b": 2}}, [], {"a": 1, "b": 2}),
        ({"args": [1], "kwargs": {"b": 2}}, [1], {"b": 2}),
        ({"args": [1], "kwargs": None}, [1], {}),
    ],
)
def test_every_way_to_write_a_call_is_understood(
    data: Any, args: list[int], kwargs: dict[str, int]
) -> None:
    made = activate(data)
    assert (made.args, made.kwargs) == (args, kwargs)


def test_arguments_arrive_as_the_types_the_task_declares() -> None:
    key = uuid.uuid4()
    made = activate({"args": ["2026-11-15"], "kwargs": {"key": str(key)}}, subject="tests.typed")
    assert (made.args, made.kwargs) == ([dt.date(2026, 11, 15)], {"key": key})


def test_a_task_that_takes_anything_gets_everything() -> None:
    made = activate({"args": [1, 2, 3], "kwargs": {"x": "y"}}, subject="tests.take_all")
    assert (made.args, made.kwargs) == ([1, 2, 3], {"x": "y"})


def test_messagepack_is_read_by_its_media_type() -> None:
    made = activate(body=Body(MESSAGEPACK, msgspec.msgpack.encode({"args": [3, 4]})))
    assert made.args == [3, 4]


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_a_media_type_may_be_written_in_several_ways(media_type: str) -> None:
    assert activate(body=Body(media_type, b'{"args": [3, 4]}')).args == [3, 4]


def test_a_calls_own_options_replace_the_tasks() -> None:
    headers = {"timeout": "2.5", "track": "failures", "retry": '{"times": 1, "first": 3}'}
    made = activate(headers=headers)
    assert (made.timeout, made.track) == (2.5, Track.FAILURES)
    assert (made.retry.times, made.retry.backoff.first) == (1, 3)


# --- what does not ---------------------------------------------------------------------------


def test_a_job_of_a_task_that_is_not_there_goes_back_with_the_nearest_name() -> None:
    outcome = activate(subject="tests.ad")
    assert isinstance(outcome, Interrupted)
    assert "'tests.ad'" in outcome.reason
    assert "tests.add" in outcome.reason


def test_a_message_to_one_worker_that_does_not_have_the_task_is_rejected() -> None:
    assert "'tests.ad'" in rejected(activate(subject="tests.ad", queue=inbox(3)))


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\x00\xff\xfe", b"not json", b'{"args": [1,', b"[" * 4_000, b'{"args": ["\\ud800"]}'],
    ids=["empty", "random", "words", "cut off", "deep", "half a surrogate"],
)
def test_bytes_that_are_no_json_are_rejected(garbage: bytes) -> None:
    assert "data" in rejected(activate(body=Body(JSON, garbage)))


def test_bytes_that_are_no_messagepack_are_rejected() -> None:
    assert "data" in rejected(activate(body=Body(MESSAGEPACK, b"\xc1\xc1")))


def test_a_body_over_the_limit_is_rejected() -> None:
    reason = rejected(activate({"args": ["x" * 9_000]}))
    assert "data" in reason
    assert "5,000" in reason


@pytest.mark.parametrize("media_type", ["", "text/xml", "application/octet-stream"])
def test_a_media_type_we_do_not_read_is_rejected(media_type: str) -> None:
    assert "datacontenttype" in rejected(activate(body=Body(media_type, b"<a/>")))


def test_a_pickle_is_never_loaded_without_a_key() -> None:
    assert "pickle" in rejected(activate(body=Body(PICKLE, b"x" * 64)))


@pytest.mark.parametrize(
    "data",
    [
        [],
        [1, 2],
        "text",
        7,
        {"args": 1},
        {"args": {"a": 1}},
        {"args": "12"},
        {"kwargs": [1]},
        {"kwargs": "a"},
        {"args": [1], "argv": []},
        {"args": None},
    ],
    ids=str,
)
def test_data_that_is_no_call_is_rejected(data: Any) -> None:
    assert "data" in rejected(activate(data))


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"args": []},
        {"args": [1, 2, 3]},
        {"args": [1], "kwargs": {"c": 1}},
        {"args": [1], "kwargs": {"a": 1}},
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_the_signature_are_rejected_with_it(data: Any) -> None:
    reason = rejected(activate(data))
    assert "data" in reason
    assert "tests.add(a: " in reason


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"args": ["one"]}, "a"),
        ({"args": [1, None]}, "b"),
        ({"args": [1], "kwargs": {"b": [2]}}, "b"),
        ({"args": [1.5]}, "a"),
        ({"args": [True]}, "a"),
    ],
    ids=str,
)
def test_an_argument_of_the_wrong_type_is_named(data: Any, field: str) -> None:
    assert rejected(activate(data)).startswith(f"{field}: ")


def test_keywords_that_are_no_names_are_rejected() -> None:
    body = Body(MESSAGEPACK, msgspec.msgpack.encode({"args": [1], "kwargs": {5: 6}}))
    assert "data" in rejected(activate(body=body))


@pytest.mark.parametrize(
    "text", ["", "soon", "0", "-1", "nan", "inf", "1e999", "None", "[1]", "0x10"]
)
def test_a_timeout_that_is_no_number_of_seconds_is_rejected(text: str) -> None:
    assert "timeout" in rejected(activate(headers={"timeout": text}))


@pytest.mark.parametrize("text", ["", "all", "RESULT", "None"])
def test_a_track_that_is_none_is_rejected(text: str) -> None:
    assert "track" in rejected(activate(headers={"track": text}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "five",
        "5",
        "[]",
        "null",
        "{",
        '{"times": "5"}',
        '{"times": -1}',
        '{"times": 1.5}',
        '{"times": true}',
        '{"times": 1000000000000}',
        '{"first": -1}',
        '{"first": "x"}',
        '{"first": null}',
        '{"factor": 0.5}',
        '{"cap": -3}',
        '{"on": "ValueError"}',
        '{"never": 1}',
        '{"colour": 1}',
        '{"first": 1e999}',
    ],
)
def test_a_retry_policy_that_is_none_is_rejected(text: str) -> None:
    reason = rejected(activate(headers={"retry": text}))
    assert any(field in reason for field in ("retry:", "times=", "first=", "factor=", "cap="))


def test_a_retry_policy_nested_without_end_is_rejected() -> None:
    assert "retry" in rejected(activate(headers={"retry": "[" * 100_000}))


def test_unknown_headers_are_left_alone() -> None:
    assert isinstance(activate(headers={"colour": "blue"}), Activation)


# --- what comes too late ---------------------------------------------------------------------


@pytest.mark.parametrize("expires", [0.0, NOW - 1, NOW])
def test_a_message_whose_time_has_passed_is_expired(expires: float) -> None:
    assert activate(expires=expires) == Expired()


@pytest.mark.parametrize("expires", [None, NOW + 0.001, 1e12])
def test_a_message_in_time_is_run(expires: float | None) -> None:
    assert isinstance(activate(expires=expires), Activation)


def test_garbage_that_has_expired_is_expired() -> None:
    assert activate(subject="unknown", body=Body(JSON, b"?"), expires=NOW) == Expired()
