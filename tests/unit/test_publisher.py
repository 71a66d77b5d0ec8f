"""Group commit: which caller leads, which callers wait, and what happens if a leader is stopped."""

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
from umbel.publisher.publisher import PublishRequest
from umbel.testing.clock import FakeClock

HANG = 30.0


class Broker:
    """Publishes when the test lets it; records the envelopes of each transaction."""

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


def make_envelope(**fields: object) -> Envelope:
    return Envelope(id=fresh_id(), subject="add", body=Body(JSON, b"{}"), **fields)  # type: ignore[arg-type]


def make_publisher(broker: Broker, deadline: float = HANG) -> Publisher:
    return Publisher(broker.send, SystemClock(), deadline=deadline)


def enqueue_all(
    publisher: Publisher, pool: ThreadPoolExecutor, envelopes: list[Envelope]
) -> list[Future[list[Published]]]:
    """Publish each envelope from its own thread. Return when all requests are in the queue."""
    futures = [pool.submit(publisher.publish, [envelope]) for envelope in envelopes]
    waiting = threading.Event()
    while len(publisher._queue) < len(envelopes):
        waiting.wait(0.001)
    return futures


def test_a_lone_call_is_sent_in_its_own_thread() -> None:
    broker, envelope = Broker(), make_envelope()
    assert make_publisher(broker).publish([envelope]) == [Published(envelope.id)]
    assert broker.threads == [threading.current_thread().name]


def test_calls_that_arrive_meanwhile_share_a_batch_and_each_gets_its_own_result() -> None:
    broker = Broker()
    publisher, mine = make_publisher(broker), [make_envelope() for _ in range(5)]
    broker.open.clear()
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(publisher.publish, [make_envelope()])
        assert broker.busy.acquire(timeout=HANG)
        futures = enqueue_all(publisher, pool, mine)
        broker.open.set()
        first.result(HANG)
        assert [f.result(HANG)[0].id for f in futures] == [e.id for e in mine]
    assert [len(batch) for batch in broker.batches] == [1, 5]


def test_the_error_of_one_caller_does_not_fail_the_others() -> None:
    broker = Broker()
    publisher, good, bad = (
        make_publisher(broker),
        [make_envelope(), make_envelope()],
        make_envelope(),
    )
    broker.fault = lambda sent: ValueError("bad") if bad in sent else None
    broker.open.clear()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(publisher.publish, [make_envelope()])
        assert broker.busy.acquire(timeout=HANG)
        futures = enqueue_all(publisher, pool, [good[0], bad, good[1]])
        broker.open.set()
        first.result(HANG)
        assert [futures[0].result(HANG)[0].id, futures[2].result(HANG)[0].id] == [
            good[0].id,
            good[1].id,
        ]
        with pytest.raises(ValueError, match="bad"):
            futures[1].result(HANG)


def test_a_call_that_may_conflict_gets_its_own_batch() -> None:
    broker = Broker()
    publisher = make_publisher(broker)
    unique = make_envelope(unique="key", on_conflict="raise")
    broker.fault = lambda sent: DuplicateJob("key", "other") if unique in sent else None
    broker.open.clear()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(publisher.publish, [make_envelope()])
        assert broker.busy.acquire(timeout=HANG)
        futures = enqueue_all(publisher, pool, [make_envelope(), unique, make_envelope()])
        broker.open.set()
        first.result(HANG)
        with pytest.raises(DuplicateJob):
            futures[1].result(HANG)
        for other in (futures[0], futures[2]):
            other.result(HANG)
    assert [len(batch) for batch in broker.batches] == [1, 1, 1]


def test_an_unavailable_broker_is_tried_again_until_the_deadline() -> None:
    broker = Broker()
    broker.fault = lambda _: Unavailable("away")
    with pytest.raises(PublishTimeout, match=r"within 0\.3 s: away"):
        make_publisher(broker, deadline=0.3).publish([make_envelope()])
    assert len(broker.threads) > 1


def test_a_broker_that_comes_back_in_time_is_no_error() -> None:
    broker = Broker()
    broker.fault = lambda _: Unavailable("away") if len(broker.threads) < 3 else None
    make_publisher(broker).publish([make_envelope()])
    assert len(broker.batches) == 1


def test_a_caller_in_the_queue_waits_no_longer_than_the_deadline() -> None:
    broker = Broker()
    publisher = make_publisher(broker, deadline=0.3)
    broker.open.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(publisher.publish, [make_envelope()])
        assert broker.busy.acquire(timeout=HANG)
        with pytest.raises(PublishTimeout):
            publisher.publish([make_envelope()])
        broker.open.set()
        first.result(HANG)
    publisher.publish([make_envelope()])


class Stopped(BaseException):
    """An exception that may be raised in a thread at any line."""


def test_a_leader_that_is_stopped_fails_its_batch_and_passes_the_leadership_on() -> None:
    broker = Broker()
    publisher = make_publisher(broker)
    broker.open.clear()
    broker.fault = lambda _: Stopped() if not broker.batches and len(broker.threads) == 1 else None
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(publisher.publish, [make_envelope()])
        assert broker.busy.acquire(timeout=HANG)
        futures = enqueue_all(publisher, pool, [make_envelope(), make_envelope()])
        broker.open.set()
        with pytest.raises(Stopped):
            first.result(HANG)
        for future in futures:
            assert len(future.result(HANG)) == 1


def test_another_caller_takes_over_when_a_leader_is_lost() -> None:
    """A thread may be stopped after it became the leader and before it sends."""
    broker, clock = Broker(), FakeClock()
    publisher = Publisher(broker.send, clock, deadline=HANG)
    assert publisher._enqueue(PublishRequest([make_envelope()], clock.monotonic() + 1)), (
        "it is the leader"
    )
    clock.advance(3)
    envelope = make_envelope()
    assert publisher.publish([envelope]) == [Published(envelope.id)]
    assert broker.batches == [[envelope.id]], "the expired request was not sent"


def test_the_sender_thread_wakes_a_caller_that_does_not_block() -> None:
    broker, woken, envelope = Broker(), threading.Event(), make_envelope()
    publisher = make_publisher(broker)
    request = publisher.submit([envelope], woken.set)
    assert woken.wait(HANG)
    assert request.result() == [Published(envelope.id)]
    assert broker.threads == ["umbel-sender"]
    publisher.close()


def test_blocking_and_other_callers_share_one_queue() -> None:
    broker, woken = Broker(), threading.Semaphore(0)
    publisher = make_publisher(broker)
    broker.open.clear()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(publisher.publish, [make_envelope()])
        assert broker.busy.acquire(timeout=HANG)
        requests = [publisher.submit([make_envelope()], woken.release) for _ in range(3)]
        broker.open.set()
        first.result(HANG)
        for _ in requests:
            assert woken.acquire(timeout=HANG)
    assert [len(batch) for batch in broker.batches] == [1, 3]
    publisher.close()


def test_a_request_that_is_abandoned_before_it_is_sent_is_not_sent() -> None:
    broker = Broker()
    publisher, unwanted = make_publisher(broker), make_envelope()
    broker.open.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(publisher.publish, [make_envelope()])
        assert broker.busy.acquire(timeout=HANG)
        publisher.abandon(publisher.submit([unwanted], lambda: None))
        broker.open.set()
        first.result(HANG)
    publisher.publish([make_envelope()])
    assert all(unwanted.id not in batch for batch in broker.batches)
    publisher.close()


def test_the_caller_with_the_most_time_left_leads_next() -> None:
    broker = Broker()
    publisher = make_publisher(broker)
    broker.open.clear()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(publisher.publish, [make_envelope()])
        assert broker.busy.acquire(timeout=HANG)
        names: list[Future[str]] = []
        for number in range(3):
            names.append(pool.submit(_publish_and_name_thread, publisher))
            while len(publisher._queue) < number + 1:
                threading.Event().wait(0.001)
        broker.open.set()
        first.result(HANG)
        latest = names[-1].result(HANG)
    assert broker.threads[1] == latest
    assert [len(batch) for batch in broker.batches] == [1, 3]


def _publish_and_name_thread(publisher: Publisher) -> str:
    publisher.publish([make_envelope()])
    return threading.current_thread().name


def test_a_send_with_a_backlog_has_as_long_as_the_caller_with_the_least_time() -> None:
    clock, given = FakeClock(), list[float]()

    def send(envelopes: Sequence[Envelope], timeout: float) -> list[Published]:
        given.append(timeout)
        return [Published(envelope.id) for envelope in envelopes]

    for has_backlog in (True, False):
        publisher = Publisher(send, clock, deadline=10.0, has_backlog=has_backlog)
        early = PublishRequest([make_envelope()], clock.monotonic() + 4, can_lead=False)
        publisher._queue.append(early)
        publisher.publish([make_envelope()])
        assert early.is_answered
    assert [round(seconds) for seconds in given] == [4, 10]
