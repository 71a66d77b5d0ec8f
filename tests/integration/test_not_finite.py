"""NaN and infinity: JSON refuses them by name, MessagePack and pickle carry them, everywhere."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from running import DEADLINE, Places, ask, finished, insert_job, nats, rabbitmq, redis, working

from umbel import Limit, Rate, Retry, RetryAfter, Snooze, State, Umbel, current, step
from umbel.backends import JobFilter
from umbel.errors import BadMessage, ConfigurationError, JobFailed, NotEncodable
from umbel.messages import fresh_id

NAN, INF = math.nan, math.inf


@dataclass
class Item:
    price: float
    note: str | None = None


class Basket(msgspec.Struct):
    items: list[Item]
    by_name: dict[str, float]


class Model(pydantic.BaseModel):
    price: float
    tags: list[str] | None = None


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    places = Places()
    yield places
    places.close()


@pytest.fixture(params=["memory", "file", "postgres", "redis", "rabbitmq", "nats"])
def make(
    request: pytest.FixtureRequest, places: Places, tmp_path: Path
) -> Iterator[Callable[..., Umbel]]:
    """A function that opens applications on one backend: a store alone, or a pair."""
    namespace, place = f"n{fresh_id()[-12:]}", request.param
    with ExitStack() as stack:
        if place in ("redis", "rabbitmq"):
            store = stack.enter_context(redis(namespace))
        else:
            store = places.url("postgres" if place == "nats" else place, tmp_path)
        broker = store
        if place == "rabbitmq":
            broker = stack.enter_context(rabbitmq())
        elif place == "nats":
            broker = stack.enter_context(nats(namespace))

        def app(**settings: Any) -> Umbel:
            how: dict[str, Any] = {"namespace": namespace, "deadline": 15.0, "backlog": "none"}
            made = Umbel(broker, store=store, **how, **settings)
            stack.callback(made.close)
            return made

        yield app


def same(left: Any, right: Any) -> bool:
    """Return whether two values are equal; NaN equals NaN."""
    return repr(left) == repr(right) and type(left) is type(right)


# --- arguments -------------------------------------------------------------------------------

REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "itself": ((NAN,), {}, "args[0] is NaN"),
    "keyword": ((), {"value": INF}, "kwargs.value is Infinity"),
    "list": (([1, [2.0, -INF]],), {}, "args[0][1][1] is -Infinity"),
    "dict": (({"a key": {"b": NAN}},), {}, 'args[0]["a key"].b is NaN'),
    "set": (({1.0, NAN},), {}, "] is NaN"),
    "dataclass": ((Item(NAN),), {}, "args[0].price is NaN"),
    "struct": ((Basket([Item(1), Item(INF)], {}),), {}, "args[0].items[1].price is Infinity"),
    "pydantic": ((Model(price=NAN),), {}, "args[0].price is NaN"),
    "beside a long integer": (([2**70, NAN],), {}, "args[0][1] is NaN"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_publishing_an_argument_that_json_cannot_carry_is_refused_with_its_path(case: str) -> None:
    app = Umbel("sqlite:///:memory:")

    @app.task
    def untyped(value: Any) -> None: ...

    args, kwargs, told = REFUSED[case]
    with pytest.raises(NotEncodable) as refused:
        untyped.delay(*args, **kwargs)
    assert told in str(refused.value)
    assert "untyped" in str(refused.value)
    assert 'format="msgpack"' in str(refused.value)
    app.close()


def test_a_typed_argument_that_json_cannot_carry_is_refused_and_nothing_is_published(
    make: Callable[..., Umbel],
) -> None:
    app = make()

    @app.task
    def double(value: float) -> float:
        return 2 * value

    with pytest.raises(NotEncodable, match=r"args\[0\] is NaN"):
        double.delay(NAN)
    with pytest.raises(NotEncodable, match=r"args\[0\] is Infinity"):
        app.publish_many([double.s(1.0), double.s(INF)])
    assert ask(app, lambda o: o.jobs(JobFilter())) == []


VALUES: dict[str, tuple[Any, Any]] = {
    "float": (float, NAN),
    "infinity": (float, -INF),
    "any": (Any, [NAN, {"a": INF, "b": None}]),
    "list": (list[float], [NAN, INF, -INF, 1.5]),
    "dict": (dict[str, float], {"a": NAN}),
    "set": (set[float], {INF}),
    "optional": (float | None, NAN),
    "dataclass": (Item, Item(NAN)),
    "struct": (Basket, Basket([Item(NAN), Item(INF)], {"x": -INF})),
    "pydantic": (Model, Model(price=NAN)),
}


@pytest.mark.parametrize("how", [{"format": "msgpack"}, {"format": "pickle", "pickle_key": "k"}])
def test_other_formats_carry_every_value_to_the_task_and_back(
    make: Callable[..., Umbel], how: dict[str, str]
) -> None:
    app = make(**how)
    tasks = {}
    for name, (kind, _) in VALUES.items():

        def echo(value: Any) -> Any:
            return value

        echo.__annotations__ = {"value": kind, "return": kind}
        tasks[name] = app.task(name=f"echo.{name}")(echo)
    with working(app):
        handles = {name: tasks[name].delay(value) for name, (_, value) in VALUES.items()}
        for name, (_, value) in VALUES.items():
            assert same(handles[name].get(DEADLINE), value), name


# --- results ---------------------------------------------------------------------------------


def test_a_result_that_json_cannot_carry_buries_the_job_at_once_and_names_its_path(
    make: Callable[..., Umbel],
) -> None:
    app = make()

    @app.task(retry=Retry(5, first=0))
    def untyped() -> Any:
        return {"rows": [Item(1), Item(NAN)]}

    @app.task(retry=Retry(5, first=0))
    async def typed() -> float:
        return -INF

    with working(app):
        for task, told in (
            (untyped, "result.rows[1].price is NaN"),
            (typed, "result is -Infinity"),
        ):
            handle = task.delay()
            with pytest.raises(NotEncodable) as raised:
                handle.get(DEADLINE)
            assert told in str(raised.value)
            record = handle.record()
            assert record.state is State.BURIED
            assert [attempt.ended for attempt in record.attempts] == ["failed"]
            assert record.failure is not None
            assert told in record.failure.message


def test_a_step_whose_result_json_cannot_carry_buries_the_job_and_names_the_step(
    make: Callable[..., Umbel],
) -> None:
    app = make()
    calls = []

    def measure() -> dict[str, float]:
        calls.append(1)
        return {"depth": INF}

    @app.task(retry=Retry(5, first=0))
    def survey() -> None:
        step(measure)

    with working(app):
        record = finished(survey.delay())
    assert record.state is State.BURIED
    assert record.failure is not None
    assert "measure" in record.failure.message
    assert "result.depth is Infinity" in record.failure.message
    assert len(calls) == 1


def test_a_step_in_another_format_is_replayed_with_its_value(make: Callable[..., Umbel]) -> None:
    app = make(format="msgpack")
    calls, seen = [], []

    def measure() -> list[float]:
        calls.append(1)
        return [NAN, INF]

    @app.task(retry=Retry(5, first=0))
    def survey() -> None:
        seen.append(step(measure))
        if current.job.attempt == 1:
            raise ValueError("once more")

    with working(app):
        survey.delay().get(DEADLINE)
    assert same(seen, [[NAN, INF], [NAN, INF]])
    assert len(calls) == 1


class Odd(Exception):
    """An error whose text does not show its argument."""

    def __str__(self) -> str:
        return "odd"


def test_an_exception_never_comes_back_with_another_argument(sqlite_app: Umbel) -> None:
    @sqlite_app.task(retry=0)
    def fail() -> None:
        raise Odd(NAN)

    with working(sqlite_app):
        handle = fail.delay()
        with pytest.raises((Odd, JobFailed)) as raised:
            handle.get(DEADLINE)
    assert not isinstance(raised.value, Odd) or math.isnan(raised.value.args[0])


@pytest.fixture
def sqlite_app(places: Places, tmp_path: Path) -> Iterator[Umbel]:
    with places.app("file", tmp_path) as app:
        yield app


# --- what tasks and calls say beside their values ---------------------------------------------


@pytest.mark.parametrize(("done", "of"), [(NAN, None), (INF, 10), (1, NAN), (1, -INF)])
def test_progress_that_is_no_number_is_refused_by_name(
    sqlite_app: Umbel, done: float, of: float | None
) -> None:
    @sqlite_app.task(retry=0)
    def work() -> None:
        current.progress(done, of)

    with working(sqlite_app):
        handle = work.delay()
        with pytest.raises(ConfigurationError, match=r"progress\((done|of)=-?(nan|inf)\)"):
            handle.get(DEADLINE)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(
    "field", ["delay", "expires", "timeout", "priority", "unique", "affinity", "retry", "worker"]
)
def test_an_option_that_is_no_number_is_refused_by_name(field: str, value: float) -> None:
    app = Umbel("sqlite:///:memory:")

    @app.task
    def work() -> None: ...

    with pytest.raises(ConfigurationError, match=f"^{field}="):
        work.options(**{field: value}).delay()  # type: ignore[misc]
    if field != "worker":
        with pytest.raises(ConfigurationError, match=f"^{field}="):
            app.task(name="other", **{field: value})(lambda: None)  # type: ignore[call-overload]


@pytest.mark.parametrize("seconds", [10**400, -(10**400)], ids=["long", "negative"])
def test_a_delay_that_no_float_can_hold_is_refused_by_name(seconds: int) -> None:
    app = Umbel("sqlite:///:memory:")

    @app.task
    def work() -> None: ...

    with pytest.raises(ConfigurationError, match=r"^delay="):
        work.options(delay=seconds)


@pytest.mark.parametrize("value", [NAN, INF])
def test_a_wait_for_a_result_is_refused_by_name_when_it_is_no_time(
    sqlite_app: Umbel, value: float
) -> None:
    @sqlite_app.task
    def work() -> int:
        return 1

    handle = work.delay()
    if math.isnan(value):
        with pytest.raises(ConfigurationError, match=r"^timeout=nan"):
            handle.get(value)
    else:
        with working(sqlite_app):
            assert handle.get(value) == 1


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(
    ("made", "name"),
    [
        (Snooze, "Snooze"),
        (RetryAfter, "RetryAfter"),
        (Limit, "limit="),
        (Rate, "rate="),
        (lambda value: Rate("1/s", burst=value), "burst="),
        (Retry, "times="),
        (lambda value: Retry(first=value), "first="),
    ],
)
def test_a_policy_with_a_value_that_is_no_number_is_refused_by_name(
    made: Callable[[float], Any], name: str, value: float
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        made(value)
    assert str(refused.value).startswith(name)


def test_a_pool_refuses_data_of_a_member_that_its_store_cannot_keep(sqlite_app: Umbel) -> None:
    with pytest.raises(ConfigurationError, match=r"members: .*a\.weight is NaN"):
        sqlite_app.pool("gpus", members={"a": {"weight": NAN}})
    with pytest.raises(ConfigurationError, match=r"members: .*a\.weight is Infinity"):
        ask(sqlite_app, lambda o: o.add_members("gpus", {"a": {"weight": INF}}))


# --- from outside and on the command line -----------------------------------------------------


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_row_whose_json_holds_no_number_is_buried_with_the_field(
    sqlite_app: Umbel, number: str
) -> None:
    @sqlite_app.task(name="work")
    def work(value: Any) -> None: ...

    with working(sqlite_app):
        handle = insert_job(sqlite_app, body=f'{{"args": [{number}]}}'.encode())
        record = finished(handle)
    assert record.state is State.BURIED
    assert record.reason.startswith("data: not valid application/json")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_foreign_event_that_holds_no_number_is_refused(sqlite_app: Umbel, number: str) -> None:
    event = (
        f'{{"specversion": "1.0", "id": "{fresh_id()}", "type": "umbel.command", "source": "/x",'
        f' "subject": "work", "data": {{"args": [{number}]}}}}'
    )
    with pytest.raises(BadMessage, match="body: not JSON"):
        sqlite_app.publish_event(event.encode())


COMMANDS = """
import math
from typing import Any
from umbel import Umbel
app = Umbel("sqlite:///umbel.db", format="{format}")
@app.task(name="double")
def double(value: float) -> float:
    return 2 * value
@app.task(name="echo")
def echo(value: Any) -> Any:
    return [value, math.nan, None]
"""


@pytest.fixture
def umbel(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a folder with an application."""

    def run(*words: str, format: str = "json") -> subprocess.CompletedProcess[str]:
        (tmp_path / "tasks.py").write_text(COMMANDS.replace("{format}", format))
        command = [sys.executable, "-m", "umbel", "-A", "tasks", *words]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE, check=False, cwd=tmp_path
        )

    return run


def test_the_command_line_refuses_a_number_that_json_cannot_represent(
    umbel: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    for words, told in (
        (("send", "double", "NaN"), "'NaN' for value"),
        (("send", "double", "--kwargs", '{"value": NaN}'), "--kwargs: JSON is malformed"),
        (("send", "double", "1e999"), "value"),
        (("send", "double", "1", "--delay", "nan"), "delay=nan"),
        (("send", "double", "1", "--expires", "inf"), "expires=inf"),
    ):
        done = umbel(*words)
        assert done.returncode != 0, words
        assert told in done.stderr, (words, done.stderr)


def test_the_command_line_shows_values_that_json_cannot_represent_as_text(
    umbel: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    assert umbel("db", "migrate", format="msgpack").returncode == 0
    app = Umbel(f"sqlite:///{tmp_path}/umbel.db", format="msgpack")

    @app.task(name="echo")
    def echo(value: Any) -> Any:
        return [value, NAN, None]

    with working(app):
        handle = echo.delay({"a": -INF})
        handle.get(DEADLINE)
    app.close()
    shown = msgspec.json.decode(umbel("jobs", "show", handle.id, "--json").stdout)
    assert shown["args"] == [{"a": "-Infinity"}]
    assert shown["result"] == [{"a": "-Infinity"}, "NaN", None]
    told = umbel("jobs", "show", handle.id).stdout
    assert '({"a":"-Infinity"})' in told
    assert '[{"a":"-Infinity"},"NaN",null]' in told
