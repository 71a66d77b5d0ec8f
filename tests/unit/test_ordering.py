"""Which queue comes first, by each strategy."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.errors import ConfigurationError
from umbel.messages import (
    JSON,
    Attempt,
    Body,
    Delivery,
    Envelope,
    Lease,
    Settlement,
    Snoozed,
    Succeeded,
    fresh_id,
)
from umbel.router.ordering import Experience, Load, Ordering, Weighted, strategy

QUEUES = ("a", "b", "c")
KNOWN = {
    "a": Experience(runs=50, seconds=2.0, kinds={"io": 1.0}),
    "b": Experience(runs=5, seconds=9.0, kinds={"cpu": 1.0}),
    "c": Experience(runs=500, seconds=0.1, kinds={"io": 0.5, "cpu": 0.5}),
}


@pytest.mark.parametrize(
    ("order", "load", "expected"),
    [
        ("short-first", Load(), ["c", "a", "b"]),
        ("long-first", Load(), ["b", "a", "c"]),
        ("rare-first", Load(), ["b", "a", "c"]),
        ("saturation", Load({"io": 0.1, "cpu": 0.9}), ["a", "c", "b"]),
        ("saturation", Load({"io": 0.9, "cpu": 0.1}), ["b", "c", "a"]),
        ("saturation", Load({"io": 0.9, "cpu": 0.9}), ["a", "b", "c"]),
        ("saturation", Load({"io": 0.5, "cpu": 0.5}), ["a", "b", "c"]),
    ],
)
def test_a_strategy_puts_queues_in_its_order(order: str, load: Load, expected: list[str]) -> None:
    chosen = strategy(order, {})
    assert chosen is not None
    assert [*chosen(QUEUES, KNOWN, load)] == expected


def test_strict_is_no_work_at_all() -> None:
    assert strategy("strict", {}) is None


def test_weights_say_how_often_a_queue_is_first() -> None:
    weighted = Weighted({"a": 8.0, "b": 2.0})
    first = Counter(weighted(("a", "b"), KNOWN, Load())[0] for _ in range(4000))
    assert 3000 < first["a"] < 3400


@given(st.permutations(QUEUES), st.sampled_from(["short-first", "long-first", "rare-first"]))
def test_no_queue_is_forgotten(queues: list[str], order: str) -> None:
    chosen = strategy(order, {})
    assert chosen is not None
    assert sorted(chosen(queues, KNOWN, Load())) == sorted(queues)


@pytest.mark.parametrize("bad", [lambda *_: ["a"], lambda *_: ["a", "a", "b"], lambda *_: 1 / 0])
def test_a_strategy_that_fails_leaves_the_queues_as_they_were_given(bad: object) -> None:
    assert Ordering(QUEUES, bad).order(Load()) == [*QUEUES]  # type: ignore[arg-type]


def test_it_learns_from_what_ran() -> None:
    ordering = Ordering(("slow", "fast"), strategy("short-first", {}))  # type: ignore[arg-type]
    for queue, seconds in (("slow", 5.0), ("fast", 0.1)):
        envelope = Envelope(id=fresh_id(), subject="t", body=Body(JSON, b"{}"), queue=queue)
        lease = Lease(envelope.id, "me", 1)
        ordering.record_started([Delivery(envelope=envelope, lease=lease)])
        story = Attempt(1, "me", 100.0, 100.0 + seconds, "succeeded")
        ordering.record_ended([Settlement(lease=lease, outcome=Succeeded(), attempt=story)])
    assert ordering.order(Load()) == ["fast", "slow"]


def test_a_run_that_goes_on_later_teaches_nothing() -> None:
    ordering = Ordering(("a", "b"), strategy("rare-first", {}))  # type: ignore[arg-type]
    envelope = Envelope(id=fresh_id(), subject="t", body=Body(JSON, b"{}"), queue="a")
    lease = Lease(envelope.id, "me", 1)
    ordering.record_started([Delivery(envelope=envelope, lease=lease)])
    story = Attempt(1, "me", 0.0, 1.0, "snoozed")
    ordering.record_ended([Settlement(lease=lease, outcome=Snoozed(1.0), attempt=story)])
    assert ordering.order(Load()) == ["a", "b"]


@pytest.mark.parametrize(
    ("order", "weights", "says"),
    [("fastest", {}, "order='fastest'"), ("weighted", {"a": 0.0}, "a=0.0: give a number above 0")],
)
def test_an_impossible_option_is_named(order: str, weights: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        strategy(order, weights)
