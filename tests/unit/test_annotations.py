"""Which results can be arguments of which parameters, as far as annotations tell."""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest

from umbel.graphs.annotations import accepts_none, can_be, shown_type


class Level(IntEnum):
    LOW = 1


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        *(
            (int, int),
            (int, float),
            (float, int),
            (bytes, str),
            (bool, int),
            (int, int | None),
            (int | None, int),
        ),
        *((list[int], list[float]), (list[int], list), (list[Any], list[str]), (list, tuple)),
        *((Any, int), (int, Any), (str, UUID), (str, datetime), (int, Level), (dict, Level)),
        *((Annotated[int, "a"], int), (Literal["a"], str), (type(None), int | None), (int, object)),
        (dict[str, int], dict[str, str]),
    ],
)
def test_a_result_that_may_fit_is_accepted(given: Any, wanted: Any) -> None:
    assert can_be(given, wanted)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        *((int, str), (bool, str), (dict, int), (dict[str, int], list[int]), (str, list[str])),
        *((list[int], list[str]), (list[list[int]], list[int]), (type(None), int), (int, bool)),
        *((str | None, int | float), (Annotated[dict, 1], Annotated[str, 1]), (str, bytes)),
    ],
)
def test_a_result_that_can_never_fit_is_refused(given: Any, wanted: Any) -> None:
    assert not can_be(given, wanted)


def test_a_type_is_shown_as_it_is_written() -> None:
    assert [shown_type(one) for one in (int, type(None), list[int], int | None)] == [
        *("int", "None", "list[int]", "int | None")
    ]
    assert accepts_none(int | None)
    assert not accepts_none(dict[str, int])
