"""One life of a worker: what it holds, and what the next life knows of it."""

from __future__ import annotations

import threading

from umbel.messages import Lease
from umbel.worker.incarnation import Life


def held_by(life: Life, job: str = "a", fence: int = 1) -> Lease:
    lease = Lease(job, life.incarnation, fence)
    life.hold(lease)
    return lease


def test_two_lives_of_one_name_are_told_apart() -> None:
    assert Life("worker").incarnation != Life("worker").incarnation


def test_a_life_holds_what_it_was_given() -> None:
    life = Life("worker")
    lease = held_by(life)
    assert life.held() == [lease]
    assert len(life) == 1


def test_what_is_settled_is_no_longer_held() -> None:
    life = Life("worker")
    life.release(held_by(life))
    assert life.held() == []


def test_lives_that_ended_are_named_until_they_were_reported() -> None:
    life = Life("worker")
    first = life.incarnation
    assert life.former() == ()
    life.begin_anew()
    second = life.incarnation
    life.begin_anew()
    assert life.former() == (first, second)
    life.reported((first,))
    assert life.former() == (second,)


def test_a_new_life_holds_nothing_and_keeps_the_name() -> None:
    life = Life("worker")
    held_by(life)
    before = life.incarnation
    life.begin_anew()
    assert (life.name, life.held()) == ("worker", [])
    assert life.incarnation != before


def test_a_lease_of_an_earlier_life_is_not_taken_over() -> None:
    life = Life("worker")
    old = Lease("a", life.incarnation, 1)
    life.begin_anew()
    life.hold(old)
    assert life.held() == []


def test_releasing_an_old_lease_leaves_the_new_one_of_the_same_job() -> None:
    life = Life("worker")
    old = held_by(life, fence=1)
    life.begin_anew()
    new = held_by(life, fence=2)
    life.release(old)
    assert life.held() == [new]


def test_releasing_twice_is_fine() -> None:
    life = Life("worker")
    lease = held_by(life)
    life.release(lease)
    life.release(lease)
    assert len(life) == 0


def test_the_heart_may_read_while_the_worker_writes() -> None:
    life = Life("worker")
    stop = threading.Event()
    trouble: list[Exception] = []

    def read() -> None:
        while not stop.is_set():
            try:
                life.held()
            except Exception as error:
                trouble.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(5_000):
        lease = held_by(life, str(number))
        if number % 2:
            life.release(lease)
    stop.set()
    reader.join()
    assert not trouble
