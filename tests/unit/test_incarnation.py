"""An incarnation of a worker: the leases that it holds, and what the next one knows of it."""

from __future__ import annotations

import threading

from umbel.messages import Lease
from umbel.worker.incarnation import Incarnation


def held_by(incarnation: Incarnation, job: str = "a", fence: int = 1) -> Lease:
    lease = Lease(job, incarnation.id, fence)
    incarnation.hold(lease)
    return lease


def test_two_incarnations_of_one_name_have_different_ids() -> None:
    assert Incarnation("worker").id != Incarnation("worker").id


def test_an_incarnation_holds_the_leases_it_was_given() -> None:
    incarnation = Incarnation("worker")
    lease = held_by(incarnation)
    assert incarnation.held() == [lease]
    assert len(incarnation) == 1


def test_a_settled_lease_is_no_longer_held() -> None:
    incarnation = Incarnation("worker")
    incarnation.release(held_by(incarnation))
    assert incarnation.held() == []


def test_former_incarnations_are_listed_until_they_are_reported() -> None:
    incarnation = Incarnation("worker")
    first = incarnation.id
    assert incarnation.former() == ()
    incarnation.start_next()
    second = incarnation.id
    incarnation.start_next()
    assert incarnation.former() == (first, second)
    incarnation.forget_former((first,))
    assert incarnation.former() == (second,)


def test_the_next_incarnation_holds_nothing_and_keeps_the_name() -> None:
    incarnation = Incarnation("worker")
    held_by(incarnation)
    before = incarnation.id
    incarnation.start_next()
    assert (incarnation.name, incarnation.held()) == ("worker", [])
    assert incarnation.id != before


def test_a_lease_of_an_earlier_incarnation_is_not_held() -> None:
    incarnation = Incarnation("worker")
    old = Lease("a", incarnation.id, 1)
    incarnation.start_next()
    incarnation.hold(old)
    assert incarnation.held() == []


def test_releasing_an_old_lease_leaves_the_new_one_of_the_same_job() -> None:
    incarnation = Incarnation("worker")
    old = held_by(incarnation, fence=1)
    incarnation.start_next()
    new = held_by(incarnation, fence=2)
    incarnation.release(old)
    assert incarnation.held() == [new]


def test_releasing_twice_is_fine() -> None:
    incarnation = Incarnation("worker")
    lease = held_by(incarnation)
    incarnation.release(lease)
    incarnation.release(lease)
    assert len(incarnation) == 0


def test_the_heartbeat_may_read_while_the_worker_writes() -> None:
    incarnation = Incarnation("worker")
    stop = threading.Event()
    trouble: list[Exception] = []

    def read() -> None:
        while not stop.is_set():
            try:
                incarnation.held()
            except Exception as error:
                trouble.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(5_000):
        lease = held_by(incarnation, str(number))
        if number % 2:
            incarnation.release(lease)
    stop.set()
    reader.join()
    assert not trouble
