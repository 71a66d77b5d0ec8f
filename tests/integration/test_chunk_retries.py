"""A chunk that collects failures does so on the last attempt of its job."""

from __future__ import annotations

from typing import Any

import pytest

from umbel import NodeFailed, Retry, Umbel, chunks
from umbel.errors import ConfigurationError
from umbel.tasks.conditions import Placeholder
from umbel.testing import in_memory

app = Umbel("postgresql://no-such-host.invalid/shop")
calls: list[int] = []


@app.task(retry=Retry(5, first=60))
def even(number: int) -> int:
    calls.append(number)
    if number % 2:
        raise ValueError(number)
    return number


@pytest.mark.parametrize("retries", [0, 1])
def test_the_retries_of_the_call_count_and_each_failed_call_has_its_place(retries: int) -> None:
    calls.clear()
    with in_memory(app) as jobs:
        handle = chunks(
            even.options(retry=retries), [(n,) for n in range(5)], 2, errors="collect"
        ).delay()
        jobs.drain()
        found = handle.get()
    shown = [one.error if isinstance(one, NodeFailed) else one for one in found]
    assert shown == [0, "ValueError: 1", 2, "ValueError: 3", 4]
    assert calls.count(1) == retries + 1


@pytest.mark.parametrize(
    ("call", "dropped"),
    [
        (even.s().on_error(even.s()), "on_error"),
        (even.s().after(even.s(2)).when(Placeholder("n", int) > 1), "after, when"),
    ],
    ids=["on_error", "after and when"],
)
def test_what_the_calls_of_chunks_would_not_have_is_refused(call: Any, dropped: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{dropped} of .* in chunks: its calls do"):
        chunks(call, [(1,)], 1)
