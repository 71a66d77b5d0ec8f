"""Counters of charts: what is counted, how sums are merged, and percentiles."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.charts import (
    OTHER_QUEUES,
    OTHER_TASKS,
    Counters,
    DepthSums,
    QueueCounts,
    Tally,
    TaskCounts,
    merge,
    percentile,
)
from umbel.charts.counters import (
    BOUNDS,
    MAX_QUEUES,
    MAX_TASKS,
    add,
    decode,
    encode,
    limit_queues,
    limit_tasks,
    total,
)
from umbel.messages import Failed, Failure, Parked, Rejected, Retry, Snoozed, Succeeded

counts = st.integers(0, 10**6)
histograms = st.lists(counts, max_size=len(BOUNDS) + 1).map(tuple)
tasks = st.builds(TaskCounts, counts, counts, counts, counts, histograms)
documents = st.builds(
    Counters,
    st.dictionaries(st.sampled_from(["a", "b", "c", OTHER_TASKS]), tasks, max_size=4),
    st.none() | st.builds(DepthSums, counts, counts, counts, counts, counts),
    histograms,
    st.dictionaries(
        st.sampled_from(["p", "q", OTHER_QUEUES]), st.builds(QueueCounts, counts, counts)
    ),
)


def same(one: Counters, two: Counters) -> bool:
    """Return whether the sums are the same, with or without empty buckets at the end."""
    full = TaskCounts(seconds=(0,) * (len(BOUNDS) + 1))
    filled = [{task: add(full, each) for task, each in many.tasks.items()} for many in (one, two)]
    empty = Counters(waits=full.seconds)
    waits = [merge([empty, many]).waits for many in (one, two)]
    if one.queues != two.queues or one.depths != two.depths:
        return False
    return filled[0] == filled[1] and waits[0] == waits[1]


@given(st.lists(documents, max_size=8), st.randoms(), st.integers(0, 8))
def test_documents_folded_in_any_order_and_in_any_portions_have_the_same_sums(
    many: list[Counters], chance: object, cut: int
) -> None:
    shuffled = list(many)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    first = decode(encode(merge(shuffled[:cut])))
    assert first is not None
    assert same(merge([first, *shuffled[cut:]]), merge(many))


@given(st.dictionaries(st.text(max_size=255), tasks, max_size=30), st.integers(0, 30))
def test_a_limit_of_tasks_keeps_the_sums(many: dict[str, TaskCounts], most: int) -> None:
    limited = limit_tasks(Counters(many), most)
    assert len(limited.tasks.keys() - {OTHER_TASKS}) <= most
    assert same(Counters({"": total(limited.tasks)}), Counters({"": total(many)}))


def test_a_value_that_is_too_long_loses_names_but_no_counts() -> None:
    names = [f"{number:03d}" + "é" * 250 for number in range(MAX_TASKS)]
    many = {name: TaskCounts(succeeded=number) for number, name in enumerate(names)}
    value = encode(Counters(many))
    read = decode(value)
    assert len(value) <= 65_536
    assert read is not None
    assert total(read.tasks).succeeded == sum(range(MAX_TASKS))
    assert names[-1] in read.tasks


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b'{"tasks": {"a": [-1]}}', b'{"tasks": {"a": "b"}}', b"\xff"]
)
def test_a_value_of_others_is_not_read(value: bytes) -> None:
    assert decode(value) is None


@pytest.mark.parametrize(
    ("histogram", "share", "seconds"),
    [
        ((), 0.5, None),
        ((0, 0), 0.5, None),
        ((10,), 0.5, 0.0005),
        ((0, 10), 0.5, 0.0015),
        ((5, 0, 5), 0.5, 0.001),
        ((5, 0, 5), 0.95, 0.002 + 0.003 * 0.9),
        ((0,) * len(BOUNDS) + (3,), 0.5, 7200.0),
    ],
)
def test_a_percentile_is_interpolated_in_its_bucket(
    histogram: Sequence[int], share: float, seconds: float | None
) -> None:
    found = percentile(histogram, share)
    assert found == (None if seconds is None else pytest.approx(seconds))


@given(st.lists(st.floats(0, 7200), min_size=1, max_size=50))
def test_a_percentile_is_in_the_bucket_of_the_true_one(times: list[float]) -> None:
    tally = Tally()
    for seconds in times:
        tally.count([("a", "q", Succeeded(), seconds)])
    taken = tally.take()
    assert taken is not None
    true = sorted(times)[(len(times) - 1) // 2]
    low = max((bound for bound in BOUNDS if bound < true), default=0.0)
    high = min(bound for bound in BOUNDS if bound >= true)
    found = percentile(taken.tasks["a"].seconds, 0.5)
    assert found is not None
    assert low <= found <= high


def test_a_tally_counts_each_end_once_and_begins_again() -> None:
    tally = Tally()
    failure = Failure("builtins:ValueError", "no")
    outcomes = (
        Succeeded(),
        Retry(failure, 1.0),
        Failed(failure),
        Rejected("no"),
        Snoozed(1.0),
        Parked(()),
    )
    tally.count(("a", "q", outcome, 0.3) for outcome in outcomes)
    histogram = (0,) * BOUNDS.index(0.5) + (3,)
    tasks, queues = {"a": TaskCounts(1, 1, 2, 1, histogram)}, {"q": QueueCounts(1, 3)}
    assert tally.take() == Counters(tasks, queues=queues)
    assert tally.take() is None


def test_waits_are_counted_once_and_merged() -> None:
    tally = Tally()
    for seconds in (0.0005, 0.3, 9_999.0):
        tally.count([("a", "q", Succeeded(), 0.01)])
        tally.count_waits([seconds])
    first = tally.take()
    assert first is not None
    assert sum(first.waits) == 3
    assert sum(merge([first, first, Counters()]).waits) == 6
    assert decode(encode(first)) == first
    tally.count([("a", "q", Succeeded(), 0.01)])
    tasks, queues = {"a": TaskCounts(1, seconds=(0, 0, 0, 1))}, {"q": QueueCounts(1)}
    assert tally.take() == Counters(tasks, queues=queues)


def test_numbers_of_an_older_release_are_read() -> None:
    older = b'{"tasks":{"a":[1,0,0,0,[1]]},"depths":[2,10,4,6]}'
    assert decode(older) == Counters({"a": TaskCounts(1, 0, 0, 0, (1,))}, DepthSums(2, 10, 4, 6))


def test_a_tally_of_endless_names_is_bounded() -> None:
    tally = Tally()
    for number in range(20_000):
        tally.count([(str(number), str(number), Rejected("no"), 0.0)])
    taken = tally.take()
    assert taken is not None
    assert len(taken.tasks) == MAX_TASKS + 1
    assert total(taken.tasks).buried == 20_000
    assert len(taken.queues) == MAX_QUEUES + 1
    assert sum(one.failed for one in taken.queues.values()) == 20_000


def test_the_busiest_queues_keep_their_names_however_often_they_are_limited() -> None:
    queues = {f"{number}é" * 60: QueueCounts(number, 1) for number in range(MAX_QUEUES * 2)}
    value = encode(Counters(queues=queues))
    assert len(value) <= 65_536
    read = decode(value)
    assert read is not None
    limited = limit_queues(merge([read, read]), 10)
    assert len(limited.queues) == 11
    assert limited.queues["199é" * 60] == QueueCounts(2 * 199, 2)
    assert sum(one.failed for one in limited.queues.values()) == MAX_QUEUES * 4
