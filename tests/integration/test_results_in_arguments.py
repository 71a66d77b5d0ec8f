"""Results of other calls are found anywhere in the arguments of a signature."""

from __future__ import annotations

import asyncio

import pytest

from umbel import Umbel
from umbel.errors import NotEncodable
from umbel.testing import in_memory

app = Umbel("postgresql://no-such-host.invalid/shop")


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def summed(numbers: dict[str, list[int]]) -> int:
    return sum(map(sum, numbers.values()))


def test_a_call_alone_finds_results_in_its_lists_and_dicts() -> None:
    with in_memory(app) as jobs:
        one = add.s(1, 2)
        handles = [
            total.s([one.result, add.s(3, 4).result, 5]).delay(),
            summed.s({"found": [one.result], "given": [1]}).delay(),
            asyncio.run(total.s([one.result]).adelay()),
        ]
        jobs.drain()
        assert [handle.get() for handle in handles] == [15, 4, 3]


def test_canvases_can_be_published_beside_other_calls() -> None:
    with in_memory(app) as jobs:
        canvas = add.s(1, 2) | add.s(10)
        handles = app.publish_many([add.s(1, 1), canvas])  # type: ignore[list-item]
        jobs.drain()
        assert [handle.get() for handle in handles] == [2, 13]


def test_an_argument_without_a_wire_form_is_still_refused() -> None:
    with in_memory(app), pytest.raises(NotEncodable, match="object"):
        total.s([object()]).delay()  # type: ignore[list-item]
