"""The idempotent receiver: what it remembers, and for how long."""

from __future__ import annotations

import pytest

from umbel.messages import Lease
from umbel.router import DuplicateFilter


def lease(job: str, fence: int = 1, owner: str = "life") -> Lease:
    return Lease(job, owner, fence)


def test_a_delivery_that_was_settled_is_known() -> None:
    duplicates = DuplicateFilter()
    duplicates.remember(lease("a"))
    assert duplicates.knows(lease("a"))


def test_a_delivery_never_seen_is_not_known() -> None:
    assert not DuplicateFilter().knows(lease("a"))


def test_the_same_job_under_a_new_fencing_number_is_a_new_delivery() -> None:
    duplicates = DuplicateFilter()
    duplicates.remember(lease("a", fence=1))
    assert not duplicates.knows(lease("a", fence=2))


def test_a_duplicate_is_known_to_every_receiver() -> None:
    duplicates = DuplicateFilter()
    duplicates.remember(lease("a", owner="one life"))
    assert duplicates.knows(lease("a", owner="another life"))


def test_the_oldest_is_forgotten_first() -> None:
    duplicates = DuplicateFilter(2)
    for job in ("a", "b", "c"):
        duplicates.remember(lease(job))
    assert [duplicates.knows(lease(job)) for job in ("a", "b", "c")] == [False, True, True]


def test_remembering_an_id_twice_evicts_no_other() -> None:
    duplicates = DuplicateFilter(2)
    for job in ("a", "b", "b"):
        duplicates.remember(lease(job))
    assert duplicates.knows(lease("a"))


@pytest.mark.parametrize("size", [1, 7, 100])
def test_it_never_remembers_more_than_its_size(size: int) -> None:
    duplicates = DuplicateFilter(size)
    for number in range(3 * size):
        duplicates.remember(lease(str(number)))
    assert sum(duplicates.knows(lease(str(number))) for number in range(3 * size)) == size


def test_a_receiver_of_size_zero_remembers_nothing() -> None:
    duplicates = DuplicateFilter(0)
    duplicates.remember(lease("a"))
    assert not duplicates.knows(lease("a"))
