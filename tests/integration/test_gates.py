"""Limits, rates and pools that an application declares, with real workers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from integration.conftest import Place, working
from integration.running import DEADLINE, Gauge, Signal, ask, until
from umbel import Limit, Rate, Retry, State, Umbel, current
from umbel.errors import ConfigurationError, JobFailed
from umbel.messages import fresh_id


def test_a_limit_holds_across_workers(place: Place) -> None:
    app, gauge = place.app(), Gauge()

    @app.task(limit=3)
    async def work() -> None:
        with gauge:
            await asyncio.sleep(0.01)

    handles = app.publish_many([work.s() for _ in range(30)])
    with working(app), working(app):
        for handle in handles:
            handle.get(timeout=DEADLINE)
    assert gauge.most == 3


def test_a_limit_by_token_and_one_in_all(place: Place) -> None:
    app, users, every = place.app(), {"ann": Gauge(), "bob": Gauge(), "eve": Gauge()}, Gauge()

    @app.task(limit=[Limit(1, token="user"), 2])
    def work(user: str, number: int) -> None:
        with users[user], every:
            time.sleep(0.005)

    handles = app.publish_many([work.s(user, n) for user in users for n in range(8)])
    with working(app, cpu=8):
        for handle in handles:
            handle.get(timeout=DEADLINE)
    assert [gauge.most for gauge in users.values()] == [1, 1, 1]
    assert every.most == 2


def test_a_job_from_elsewhere_waits_at_the_gates_its_task_has(place: Place) -> None:
    app, gauge = place.app(), Gauge()

    @app.task(name="work", limit=[Limit(1, token=lambda user: user.lower())])
    async def work(user: str) -> None:
        with gauge:
            await asyncio.sleep(0.01)

    events = [
        {
            "specversion": "1.0",
            "type": "umbel.command",
            "source": "/elsewhere",
            "subject": "work",
            "data": {"args": [name]},
        }
        for name in ("Ann", "ann", "ANN")
    ]
    handles = [
        app.publish_event(
            json.dumps({**event, "id": f"00000000-0000-4000-8000-00000000000{n}"}).encode()
        )
        for n, event in enumerate(events)
    ]
    with working(app), working(app):
        for handle in handles:
            handle.get(timeout=DEADLINE)
    assert gauge.most == 1
    assert [job.attempt for job in place.jobs()] == [1, 1, 1]
    assert all(len(job.attempts) == 1 for job in place.jobs())


def test_a_token_that_cannot_be_determined_buries_the_job_with_the_reason(place: Place) -> None:
    app = place.app()

    def broken(user: str) -> str:
        raise LookupError(f"no tenant for {user}")

    @app.task(limit=Limit(1, token=broken))
    async def work(user: str) -> None: ...

    handle = work.delay("ann")
    with working(app), pytest.raises(JobFailed, match="token: LookupError: no tenant for ann"):
        handle.get(timeout=DEADLINE)


def test_a_limit_of_nothing_waits_or_rejects_as_asked(place: Place) -> None:
    app = place.app()

    @app.task(limit=0)
    async def waits() -> None: ...

    @app.task(limit=Limit(0, zero="reject"))
    async def refused() -> None: ...

    @app.task
    async def free() -> int:
        return 1

    waiting = waits.delay()
    with working(app):
        with pytest.raises(JobFailed, match="its limit is 0"):
            refused.delay().get(timeout=DEADLINE)
        assert free.delay().get(timeout=DEADLINE) == 1
        assert waiting.state is State.WAITING


def test_a_computed_limit_follows_its_function(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("umbel.worker.gate_sync._SYNC_INTERVAL", 0.05)
    app, allowed, go = place.app(), [99], Signal("the end")
    gauge = Gauge()

    @app.task(limit=Limit(lambda: allowed[0], low=1, high=2))
    async def work() -> None:
        with gauge:
            await go.seen()

    handles = app.publish_many([work.s() for _ in range(6)])
    with working(app):
        until(lambda: gauge.now == 2, "two to run, not ninety-nine")
        allowed[0] = 0
        go.set()
        for handle in handles:
            handle.get(timeout=DEADLINE)
    assert gauge.most == 2


def test_a_limit_that_the_code_no_longer_has_blocks_no_job(place: Place) -> None:
    old, new = place.app(), place.app()

    @old.task(name="work", limit=0)
    async def before() -> int:
        return 0

    @new.task(name="work")
    async def after() -> int:
        return 7

    handle = before.delay()
    with working(old):
        until(lambda: handle.state is State.WAITING, "it to wait")
    with working(new):
        assert handle.get(timeout=DEADLINE) == 7


def test_a_queue_has_limits_of_its_own(place: Place) -> None:
    app, gauge = place.app(), Gauge()
    app.queue("narrow", limit=2)

    @app.task(queue="narrow")
    async def one() -> None:
        with gauge:
            await asyncio.sleep(0.01)

    @app.task(queue="narrow", limit=Limit(1, token="n"))
    async def other(n: int) -> None:
        with gauge:
            await asyncio.sleep(0.01)

    handles = app.publish_many([call for n in range(10) for call in (one.s(), other.s(n))])
    with working(app), working(app):
        for handle in handles:
            handle.get(timeout=DEADLINE)
    assert gauge.most == 2


def test_a_rate_spreads_the_starts(place: Place) -> None:
    app = place.app()
    starts: list[float] = []

    @app.task(rate=["50/s", Rate("1000/h", burst=100)])
    async def work() -> None:
        starts.append(time.monotonic())

    handles = app.publish_many([work.s() for _ in range(20)])
    with working(app), working(app):
        for handle in handles:
            handle.get(timeout=DEADLINE)
    # What was published at once took what twenty steps of a fiftieth of a second take, or longer.
    assert len(starts) == 20
    assert max(starts) - min(starts) > 0.9 * 18 / 50


def test_a_limit_of_each_worker(place: Place) -> None:
    app, every = place.app(), Gauge()
    here: dict[str, Gauge] = {}

    @app.task(limit=Limit(2, per="worker"))
    async def work() -> None:
        with here.setdefault(current.lease.owner, Gauge()), every:
            await asyncio.sleep(0.02)

    handles = app.publish_many([work.s() for _ in range(30)])
    with working(app), working(app):
        for handle in handles:
            handle.get(timeout=DEADLINE)
    assert [gauge.most for gauge in here.values()] == [2, 2]
    assert all(len(job.attempts) == 1 for job in place.jobs())


def test_a_limit_of_each_worker_by_token(place: Place) -> None:
    app, gauges = place.app(), {"ann": Gauge(), "bob": Gauge()}

    @app.task(limit=Limit(1, per="worker", token="user"))
    async def work(user: str) -> None:
        with gauges[user]:
            await asyncio.sleep(0.01)

    handles = app.publish_many([work.s(user) for _ in range(3) for user in gauges])
    with working(app):
        for handle in handles:
            handle.get(timeout=DEADLINE)
    assert [gauge.most for gauge in gauges.values()] == [1, 1]


def test_a_rate_of_each_worker(place: Place) -> None:
    app, starts = place.app(), list[float]()

    @app.task(rate=Rate("50/s", per="worker"))
    async def work() -> None:
        starts.append(time.monotonic())

    @app.task
    async def free() -> int:
        return 1

    handles = app.publish_many([work.s() for _ in range(20)])
    with working(app):
        assert free.delay().get(timeout=DEADLINE) == 1
        for handle in handles:
            handle.get(timeout=DEADLINE)
    assert max(starts) - min(starts) > 0.9 * 18 / 50


def test_a_pool_gives_each_job_a_member_of_its_own(place: Place) -> None:
    app = place.app()
    executors = app.pool("executors", members={"a": {"port": 1}, "b": {"port": 2}})
    used: dict[str, Gauge] = {"a": Gauge(), "b": Gauge()}
    fences: dict[str, list[int]] = {"a": [], "b": []}

    @app.task(pool=executors)
    async def evaluate(number: int) -> dict[str, Any]:
        lease = current.lease
        with used[lease.member]:
            fences[lease.member].append(lease.fence)
            await asyncio.sleep(0.01)
            return lease.data

    handles = app.publish_many([evaluate.s(n) for n in range(30)])
    with working(app), working(app):
        ports = {handle.get(timeout=DEADLINE)["port"] for handle in handles}
    assert ports == {1, 2}
    assert [gauge.most for gauge in used.values()] == [1, 1]
    for seen in fences.values():
        assert seen == sorted({*seen})


def test_an_unhealthy_member_is_set_aside_and_costs_no_attempt(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("umbel.worker.gate_sync._SYNC_INTERVAL", 0.05)
    app, ill = place.app(), {"a"}

    async def probe(member: str) -> bool:
        return member not in ill

    pool = app.pool("p", members=["a", "b"], check=probe)

    @app.task(pool=pool, retry=0)
    async def coroutine() -> str:
        return current.lease.member

    @app.task(pool=pool, retry=0)
    def thread() -> str:
        return current.lease.member

    with working(app):
        calls = [call for _ in range(5) for call in (coroutine.s(), thread.s())]
        seen = {handle.get(timeout=DEADLINE) for handle in app.publish_many(calls)}
        assert seen == {"b"}
        assert {job.attempt for job in place.jobs()} == {1}
        ill.clear()
        until(lambda: coroutine.delay().get(timeout=DEADLINE) == "a", "the member to be back")


def test_a_member_is_held_no_longer_than_its_ttl(place: Place) -> None:
    app = place.app()
    pool = app.pool("p", members=["a"], ttl=0.2)

    @app.task(pool=pool, retry=0)
    async def slow() -> None:
        await asyncio.sleep(3600)

    @app.task(pool=pool)
    async def quick() -> int:
        return 1

    with working(app):
        first, second = slow.delay(), quick.delay()
        assert second.get(timeout=DEADLINE) == 1
        with pytest.raises(TimeoutError, match="timed out after"):
            first.get(timeout=DEADLINE)


def test_two_pools_at_once_do_not_lock_each_other(place: Place) -> None:
    app = place.app()
    a, b = app.pool("a", members=["a1"]), app.pool("b", members=["b1"])

    @app.task(pool=[a, b])
    async def one() -> dict[str, str]:
        await asyncio.sleep(0.01)
        return current.lease.members

    @app.task(pool=[b, a])
    async def other() -> dict[str, str]:
        await asyncio.sleep(0.01)
        return current.lease.members

    handles = app.publish_many([call for _ in range(10) for call in (one.s(), other.s())])
    with working(app), working(app):
        for handle in handles:
            assert handle.get(timeout=DEADLINE) == {"a": "a1", "b": "b1"}
            (attempt,) = handle.record().attempts
            assert attempt.members == {"a": "a1", "b": "b1"}, "the record says what it used"


def test_each_attempt_says_which_member_of_a_pool_it_used(place: Place) -> None:
    app = place.app()
    executors = app.pool("executors", members=["a", "b"])

    @app.task(pool=executors, retry=Retry(1, first=0))
    async def evaluate() -> None:
        raise RuntimeError(current.lease.member)

    @app.task
    async def free() -> None: ...

    with working(app):
        handle, other = evaluate.delay(), free.delay()
        with pytest.raises(RuntimeError):
            handle.get(timeout=DEADLINE)
        other.get(timeout=DEADLINE)
    attempts = handle.record().attempts
    assert len(attempts) == 2
    for attempt in attempts:
        assert attempt.failure is not None
        assert attempt.members == {"executors": attempt.failure.message}
    assert [one.members for one in other.record().attempts] == [{}]


def test_waiting_and_running_are_measured_apart(place: Place) -> None:
    app = place.app()

    @app.task(limit=1)
    async def work() -> None:
        await asyncio.sleep(0.1)

    handles = app.publish_many([work.s() for _ in range(3)])
    with working(app):
        for handle in handles:
            handle.get(timeout=DEADLINE)
    last = max(place.jobs(), key=lambda job: job.attempts[0].started)
    assert last.waited is not None
    assert last.waited > 1.9 * 0.1
    assert last.ran > 0.09


def test_a_waiting_job_is_cancelled(place: Place) -> None:
    app = place.app()
    pool = app.pool("empty")

    @app.task(pool=pool)
    async def work() -> None: ...

    with working(app):
        handle = work.delay()
        until(lambda: handle.state is State.WAITING, "it to wait")
        handle.cancel()
        until(lambda: handle.state is State.CANCELLED, "it to be cancelled")


def test_bad_declarations_are_named() -> None:
    app = Umbel("sqlite:///:memory:")

    def declare(**options: Any) -> None:
        @app.task(name=f"t{threading.get_ident()}{time.monotonic_ns()}", **options)
        async def work(user: str) -> None: ...

    for options, says in (
        ({"limit": -1}, "limit=-1"),
        ({"limit": 10**12}, "limit=1000000000000"),
        ({"limit": "5"}, "limit='5'"),
        ({"limit": True}, "limit=True"),
        ({"limit": [1, 2]}, "two limits count the same"),
        ({"limit": Limit(1, token="nobody")}, "has no such argument"),
        ({"rate": "fast"}, "rate='fast'"),
        ({"rate": "0/s"}, "rate='0/s'"),
        ({"rate": "10/fortnight"}, "rate='10/fortnight'"),
        ({"pool": "executors"}, "pool='executors'"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            declare(**options)
    with pytest.raises(ConfigurationError, match="listed twice"):
        app.pool("p", members=["a", "a"])
    with pytest.raises(ConfigurationError, match="ttl=0"):
        app.pool("p", members=["a"], ttl=0)
    app.pool("p")
    with pytest.raises(ConfigurationError, match="a pool of that name exists already"):
        app.pool("p")
    with pytest.raises(ConfigurationError, match="burst=0"):
        Rate("10/s", burst=0)
    with pytest.raises(ConfigurationError, match="per='planet'"):
        Limit(1, per="planet")  # type: ignore[arg-type]


def test_a_message_of_another_program_is_routed_by_its_affinity_key(place: Place) -> None:
    app = place.app()

    @app.task(name="work", limit=5)
    async def work() -> str:
        return "done"

    event = {"specversion": "1.0", "id": fresh_id(), "type": "umbel.command", "source": "/shop"}
    event |= {"subject": "work", "data": {}, "affinitykey": "seven"}
    with working(app):
        assert app.publish_event(json.dumps(event).encode()).get(timeout=DEADLINE) == "done"
        (route,) = ask(app, lambda operations: operations.routes(key="seven"))
    assert (route.key, route.index) == ("seven", 0)
