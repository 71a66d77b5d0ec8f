"""Does a call fit a task? When publishing, and on what arrives from outside."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.errors import BadArguments, BadMessage
from umbel.messages import BodyCodec
from umbel.tasks.parameters import Parameters

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]


def plain(a: int, b: str = "x") -> None: ...
def mixed(a: int, /, b: datetime, *rest: int, flag: bool = False, **extra: date) -> None: ...
def loose(a, b=None): ...  # type: ignore[no-untyped-def]
def half_known(when: datetime, thing: Missing) -> None: ...
def catch_all(*args: int, **kwargs: str) -> None: ...
def shadowed(a: int = 0, /, **extra: str) -> None: ...
def named(a: int, *, b: int, c: int = 0) -> None: ...


def parameters(function: Any) -> Parameters:
    return Parameters(function, "tests.it")


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (plain, (1,), {}),
        (plain, (1, "y"), {}),
        (plain, (), {"a": 1, "b": "y"}),
        (plain, (True,), {}),
        (mixed, (1, datetime.now(UTC), 2, 3), {"flag": True, "day": date(2026, 1, 1)}),
        (loose, (object(),), {"b": 5}),
        (catch_all, (1, 2), {"x": "y"}),
        (shadowed, (1,), {"a": "y"}),
    ],
)
def test_a_call_that_fits_is_accepted(function: Any, args: Any, kwargs: Any) -> None:
    parameters(function).check(args, kwargs)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "named"),
    [
        (plain, (), {}, "missing a required argument: 'a'"),
        (plain, (1, "x", 3), {}, "too many positional arguments: 3 instead of 2"),
        (plain, (1,), {"c": 3}, "there is no parameter 'c'; the parameters are a, b"),
        (plain, (1,), {"a": 3}, "multiple values for argument 'a'"),
        (plain, ("one",), {}, "a must be int, not str"),
        (plain, (1,), {"b": 5}, "b must be str, not int"),
        (plain, (None,), {}, "a must be int, not NoneType"),
        (mixed, (1, datetime.now(UTC), "x"), {}, "rest must be int"),
        (mixed, (1, datetime.now(UTC)), {"flag": 1}, "flag must be bool"),
        (mixed, (), {"a": 1, "b": 2}, "missing a required argument: 'a'"),
        (named, (1,), {}, "missing a required argument: 'b'"),
        (named, (1, 2), {"b": 3}, "too many positional arguments: 2 instead of 1"),
        (catch_all, (), {1: "x"}, "the keyword 1 is not a text"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_by_name(
    function: Any, args: Any, kwargs: Any, named: str
) -> None:
    with pytest.raises(BadArguments, match=named):
        parameters(function).check(args, kwargs)


def test_an_extra_keyword_may_be_called_like_the_star_argument() -> None:
    catch_all(args="x")  # type: ignore[call-arg]
    parameters(catch_all).check((), {"args": "x"})
    assert parameters(catch_all).decode({"kwargs": {"args": "x"}}) == ([], {"args": "x"})


def test_arguments_come_back_as_the_types_declared() -> None:
    args, kwargs = parameters(mixed).decode(
        {
            "args": [1, "2026-01-31T12:00:00Z", 2],
            "kwargs": {"flag": True, "day": "2026-01-31"},
        }
    )
    assert args == [1, datetime(2026, 1, 31, 12, tzinfo=UTC), 2]
    assert kwargs == {"flag": True, "day": date(2026, 1, 31)}


def test_arguments_without_annotations_come_back_plain() -> None:
    assert parameters(loose).decode({"args": [[1, {"x": None}]]}) == ([[1, {"x": None}]], {})


def test_an_annotation_that_cannot_be_resolved_does_not_spoil_the_others() -> None:
    args, _ = parameters(half_known).decode({"args": ["2026-01-31T12:00:00Z", {"x": 1}]})
    assert args == [datetime(2026, 1, 31, 12, tzinfo=UTC), {"x": 1}]


@pytest.mark.parametrize(
    "data",
    [
        *(None, 5, "x", [], [1, 2]),
        {"args": [1], "other": 1},
        {"args": 5},
        {"args": {}},
        {"args": None},
        {"args": [1], "kwargs": [1]},
        {"args": []},
        {"args": [1, "x", 3]},
        {"args": [1], "kwargs": {"c": 1}},
        {"args": [1], "kwargs": {1: 2}},
    ],
)
def test_data_that_is_no_call_of_the_task_is_a_bad_message(data: Any) -> None:
    with pytest.raises(BadMessage) as caught:
        parameters(plain).decode(data)
    assert caught.value.field == "data"


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"args": ["x"]}, "a"),
        ({"args": [1, 5]}, "b"),
        ({"kwargs": {"a": 1, "b": None}}, "b"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(data: Any, field: str) -> None:
    with pytest.raises(BadMessage) as caught:
        parameters(plain).decode(data)
    assert caught.value.field == field


ANY: Any = object()


@pytest.mark.parametrize(
    "function",
    [
        lambda: 0,
        lambda a, b=0: 0,
        lambda a, /, b: 0,
        lambda a, b=0, /: 0,
        lambda a, /, **extra: 0,
        lambda a=0, /, **extra: 0,
        lambda a, /, b, *rest, c=0, **extra: 0,
        lambda a, *, b, c=0: 0,
        lambda *a, b: 0,
        lambda **a: 0,
    ],
)
@given(count=st.integers(0, 4), keywords=st.sets(st.sampled_from("abcd")))
def test_a_call_is_refused_exactly_if_python_refuses_it(
    function: Any, count: int, keywords: set[str]
) -> None:
    args, kwargs = (ANY,) * count, dict.fromkeys(keywords, ANY)
    try:
        function(*args, **kwargs)
    except TypeError:
        with pytest.raises(BadArguments):
            parameters(function).check(args, kwargs)
    else:
        parameters(function).check(args, kwargs)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
calls = st.fixed_dictionaries(
    {}, optional={"args": st.lists(json_values, max_size=4), "kwargs": json_values}
)


@pytest.mark.parametrize("function", [plain, mixed, loose, half_known, catch_all])
@given(data=json_values | calls)
def test_any_data_is_decoded_or_refused_as_a_bad_message(function: Any, data: Any) -> None:
    try:
        args, kwargs = parameters(function).decode(data)
    except BadMessage:
        return
    function(*args, **kwargs)


@given(a=st.integers(-(2**63), 2**63 - 1), b=st.uuids(), days=st.dates())
def test_typed_arguments_survive_the_journey(a: int, b: uuid.UUID, days: date) -> None:
    def typed(a: int, b: uuid.UUID, *, day: date) -> None: ...

    codec, prepared = BodyCodec(), Parameters(typed, "tests.typed")
    prepared.check((a, b), {"day": days})
    body = codec.encode({"args": (a, b), "kwargs": {"day": days}})
    assert prepared.decode(codec.decode(body)) == ([a, b], {"day": days})
