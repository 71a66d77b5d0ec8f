"""Group commit: who leads, who waits, and what happens when a leader is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from umbel.backends import Published
from umbel.clock import SystemClock
from umbel.errors import DuplicateJob, PublishTimeout, Unavailable
from umbel.messages import JSON, Body, Envelope, fresh_id
from umbel.publisher import Publisher
from umbel.publisher.publisher import Parcel
from umbel.testing.clock import FakeClock

HANG = 30.0


class Broker:
    """Publishes when the test lets it; notes what each transaction carried."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.threads: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self.busy = threading.Semaphore(0)
        self.fault: Callable[[Sequence[Envelope]], BaseException | None] = lambda _: None

    def send(self, envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        self.busy.release()
        self.threads.append(threading.current_thread().name)
        assert self.open.wait(HANG)
        error = self.fault(envelopes)
        if error is not None:
            raise error
        self.batches.append([envelope.id for envelope in envelopes])
        return [Published(envelope.id) for envelope in envelopes]


def made(**fields: object) -> Envelope:
    return Envelope(id=fresh_id(), subject="add", body=Body(JSON, b"{}"), **fields)  # type: ignore[arg-type]


def a_publisher(broker: Broker, deadline: float = HANG) -> Publisher:
    return Publisher(broker.send, SystemClock(), deadline=deadline)


def in_line(
    publisher: Publisher, pool: ThreadPoolExecutor, envelopes: list[Envelope]
) -> list[Future[list[Published]]]:
    """Let each publish from a thread of its own; returns when all of them stand in the line."""
    futures = [pool.submit(publisher.publish, [envelope]) for envelope in envelopes]
    waiting = threading.Event()
    while len(publisher._line) < len(envelopes):
        waiting.wait(0.001)
    return futures


def test_a_lone_call_is_sent_in_its_own_thread() -> None:
    broker, envelope = Broker(), made()
    assert a_publisher(broker).publish([envelope]) == [Published(envelope.id)]
    assert broker.threads == [threading.current_thread().name]


def test_calls_that_come_meanwhile_travel_together_and_each_gets_its_own() -> None:
    broker = Broker()
    publisher, mine = a_publisher(broker), [made() for _ in range(5)]
    broker.open.clear()
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(publisher.publish, [made()])
        assert broker.busy.acquire(timeout=HANG)
        futures = in_line(publisher, pool, mine)
        broker.open.set()
        first.result(HANG)
        assert [f.result(HANG)[0].id for f in futures] == [e.id for e in mine]
    assert [len(batch) for batch in broker.batches] == [1, 5]


def test_one_callers_fault_is_not_the_others() -> None:
    broker = Broker()
    publisher, good, bad = a_publisher(broker), [made(), made()], made()
    broker.fault = lambda sent: ValueError("bad") if bad in sent else None
    broker.open.clear()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(publisher.publish, [made()])
        assert broker.busy.acquire(timeout=HANG)
        futures = in_line(publisher, pool, [good[0], bad, good[1]])
        broker.open.set()
        first.result(HANG)
        assert [futures[0].result(HANG)[0].id, futures[2].result(HANG)[0].id] == [
            good[0].id,
            good[1].id,
        ]
        with pytest.raises(ValueError, match="bad"):
            futures[1].result(HANG)


def test_a_call_that_may_conflict_travels_alone() -> None:
    broker = Broker()
    publisher = a_publisher(broker)
    unique = made(unique="key", on_conflict="raise")
    broker.fault = lambda sent: DuplicateJob("key", "other") if unique in sent else None
    broker.open.clear()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(publisher.publish, [made()])
        assert broker.busy.acquire(timeout=HANG)
        futures = in_line(publisher, pool, [made(), unique, made()])
        broker.open.set()
        first.result(HANG)
        with pytest.raises(DuplicateJob):
            futures[1].result(HANG)
        for other in (futures[0], futures[2]):
            other.result(HANG)
    assert [len(batch) for batch in broker.batches] == [1, 1, 1]


def test_a_broker_that_is_away_is_tried_again_until_the_deadline() -> None:
    broker = Broker()
    broker.fault = lambda _: Unavailable("away")
    with pytest.raises(PublishTimeout, match=r"within 0\.3 s: away"):
        a_publisher(broker, deadline=0.3).publish([made()])
    assert len(broker.threads) > 1


def test_a_broker_that_comes_back_in_time_is_no_error() -> None:
    broker = Broker()
    broker.fault = lambda _: Unavailable("away") if len(broker.threads) < 3 else None
    a_publisher(broker).publish([made()])
    assert len(broker.batches) == 1


def test_whoever_waits_in_line_waits_no_longer_than_the_deadline() -> None:
    broker = Broker()
    publisher = a_publisher(broker, deadline=0.3)
    broker.open.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(publisher.publish, [made()])
        assert broker.busy.acquire(timeout=HANG)
        with pytest.raises(PublishTimeout):
            publisher.publish([made()])
        broker.open.set()
        first.result(HANG)
    publisher.publish([made()])


class Stopped(BaseException):
    """What may be raised in a thread at any line."""


def test_a_leader_that_is_stopped_tells_its_company_and_passes_the_lead_on() -> None:
    broker = Broker()
    publisher = a_publisher(broker)
    broker.open.clear()
    broker.fault = lambda _: Stopped() if not broker.batches and len(broker.threads) == 1 else None
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(publisher.publish, [made()])
        assert broker.busy.acquire(timeout=HANG)
        futures = in_line(publisher, pool, [made(), made()])
        broker.open.set()
        with pytest.raises(Stopped):
            first.result(HANG)
        for future in futures:
            assert len(future.result(HANG)) == 1


def test_a_lead_that_was_lost_is_taken_up_again() -> None:
    """A thread may be stopped between being given the lead and taking it."""
    broker, clock = Broker(), FakeClock()
    publisher = Publisher(broker.send, clock, deadline=HANG)
    assert publisher._queue(Parcel([made()], clock.monotonic() + 1)), "it leads, and is no more"
    clock.advance(3)
    envelope = made()
    assert publisher.publish([envelope]) == [Published(envelope.id)]
    assert broker.batches == [[envelope.id]], "what came too late was sent"


def test_a_caller_that_does_not_block_is_told_by_the_courier() -> None:
    broker, told, envelope = Broker(), threading.Event(), made()
    publisher = a_publisher(broker)
    parcel = publisher.publish_soon([envelope], told.set)
    assert told.wait(HANG)
    assert parcel.result() == [Published(envelope.id)]
    assert broker.threads == ["umbel-courier"]
    publisher.close()


def test_blocking_and_other_callers_share_one_line() -> None:
    broker, told = Broker(), threading.Semaphore(0)
    publisher = a_publisher(broker)
    broker.open.clear()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(publisher.publish, [made()])
        assert broker.busy.acquire(timeout=HANG)
        parcels = [publisher.publish_soon([made()], told.release) for _ in range(3)]
        broker.open.set()
        first.result(HANG)
        for _ in parcels:
            assert told.acquire(timeout=HANG)
    assert [len(batch) for batch in broker.batches] == [1, 3]
    publisher.close()


def test_what_is_given_up_before_it_was_sent_is_not_sent() -> None:
    broker = Broker()
    publisher, unwanted = a_publisher(broker), made()
    broker.open.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(publisher.publish, [made()])
        assert broker.busy.acquire(timeout=HANG)
        publisher.give_up(publisher.publish_soon([unwanted], lambda: None))
        broker.open.set()
        first.result(HANG)
    publisher.publish([made()])
    assert all(unwanted.id not in batch for batch in broker.batches)
    publisher.close()


def test_the_caller_with_the_most_time_left_leads_next() -> None:
    broker = Broker()
    publisher = a_publisher(broker)
    broker.open.clear()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(publisher.publish, [made()])
        assert broker.busy.acquire(timeout=HANG)
        names: list[Future[str]] = []
        for number in range(3):
            names.append(pool.submit(_named, publisher))
            while len(publisher._line) < number + 1:
                threading.Event().wait(0.001)
        broker.open.set()
        first.result(HANG)
        latest = names[-1].result(HANG)
    assert broker.threads[1] == latest
    assert [len(batch) for batch in broker.batches] == [1, 3]


def _named(publisher: Publisher) -> str:
    publisher.publish([made()])
    return threading.current_thread().name


def test_a_send_that_keeps_has_as_long_as_the_caller_with_the_least_time() -> None:
    clock, given = FakeClock(), list[float]()

    def send(envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        given.append(timeout)
        return [Published(envelope.id) for envelope in envelopes]

    for keeps in (True, False):
        publisher = Publisher(send, clock, deadline=10.0, keeps=keeps)
        early = Parcel([made()], clock.monotonic() + 4, can_lead=False)
        publisher._line.append(early)
        publisher.publish([made()])
        assert early.answered
    assert [round(seconds) for seconds in given] == [4, 10]
