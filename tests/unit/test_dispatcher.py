"""Who asks next when many workers share one broker, on a broker that tests can see into."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from umbel.backends import Broker, Demand
from umbel.clock import SystemClock
from umbel.errors import LeaseLost, Unavailable
from umbel.messages import (
    JSON,
    Attempt,
    Body,
    Delivery,
    Envelope,
    Interrupted,
    Lease,
    Settlement,
    Succeeded,
)
from umbel.router import Dispatcher


class Shelf:
    """Hands out what lies on it; remembers who asked."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.asked: list[tuple[str, Demand]] = []
        self.settled: list[list[Settlement]] = []
        self.problems: dict[str, Exception] = {}
        self.slow = asyncio.Event()
        self.slow.set()
        self._changed = asyncio.Event()

    def put(self, *jobs: str) -> None:
        self.jobs += jobs
        self.stop_waiting()

    def stop_waiting(self) -> None:
        self._changed.set()

    async def fetch(
        self, queues: Sequence[str], demand: Demand, owner: str, wait: float
    ) -> list[Delivery]:
        self.asked.append((owner, demand))
        if owner in self.problems:
            raise self.problems[owner]
        if not self._fitting(demand):
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), wait)
            except TimeoutError:
                return []
        found = self._fitting(demand)
        self.jobs = [job for job in self.jobs if job not in found]
        return [_delivery(job, owner) for job in found]

    def _fitting(self, demand: Demand) -> list[str]:
        io = [job for job in self.jobs if job.startswith("io")][: demand.capacity("io")]
        cpu = [job for job in self.jobs if job.startswith("cpu")][: demand.capacity("cpu")]
        return io + cpu

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        self.settled.append(list(settlements))
        await self.slow.wait()
        if any(one.lease.job == "bad" for one in settlements):
            raise ValueError("cannot be recorded")
        return [one.lease for one in settlements if one.lease.job == "lost"]


def _delivery(job: str, owner: str) -> Delivery:
    envelope = Envelope(id=job, subject="t", body=Body(JSON, b"{}"))
    return Delivery(envelope=envelope, lease=Lease(job, owner, 1))


def _settlement(job: str) -> Settlement:
    story = Attempt(1, "w", 0.0, 0.0, "succeeded")
    return Settlement(lease=Lease(job, "w", 1), outcome=Succeeded(), attempt=story)


def dispatched() -> tuple[Shelf, Dispatcher]:
    shelf = Shelf()
    return shelf, Dispatcher(cast(Broker, shelf), SystemClock())


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [one.id for one in deliveries]


def run(work: Any) -> Any:
    async def in_time() -> Any:
        return await asyncio.wait_for(work(), 30)

    return asyncio.run(in_time())


def test_the_one_with_the_most_room_is_served_first_and_the_next_gets_the_rest() -> None:
    async def main() -> None:
        shelf, dispatcher = dispatched()
        waiting_workers = dispatcher.waiting_workers(["q"])
        small = asyncio.create_task(waiting_workers.fetch("small", Demand.of(io=2, cpu=1), 20))
        await asyncio.sleep(0)
        large = asyncio.create_task(waiting_workers.fetch("large", Demand.of(io=3, cpu=1), 20))
        await asyncio.sleep(0.01)
        shelf.stop_waiting()  # so that the line looks again, with both in it
        await asyncio.sleep(0.01)
        shelf.put("io1", "io2", "io3", "io4")
        assert ids(await large) == ["io1", "io2", "io3"]
        assert ids(await small) == ["io4"]

    run(main)


def test_only_one_asks_the_broker_while_all_wait() -> None:
    async def main() -> None:
        shelf, dispatcher = dispatched()
        waiting_workers = dispatcher.waiting_workers(["q"])
        waiting = [
            asyncio.create_task(waiting_workers.fetch(f"w{at}", Demand.of(io=1, cpu=1), 20))
            for at in range(50)
        ]
        await asyncio.sleep(0.05)
        assert len(shelf.asked) == 1
        shelf.put(*(f"io{at}" for at in range(50)))
        got = [ids(await one) for one in waiting]
        assert sorted(job for one in got for job in one) == sorted(f"io{at}" for at in range(50))

    run(main)


@pytest.mark.parametrize("job", ["io", "cpu"])
def test_a_job_that_only_one_of_two_could_start_reaches_it(job: str) -> None:
    async def main() -> None:
        shelf, dispatcher = dispatched()
        waiting_workers = dispatcher.waiting_workers(["q"])
        takers = {
            "io": asyncio.create_task(waiting_workers.fetch("a", Demand.of(io=100), 20)),
            "cpu": asyncio.create_task(waiting_workers.fetch("b", Demand.of(cpu=4), 20)),
        }
        await asyncio.sleep(0.2)
        shelf.put(f"{job}1")
        assert ids(await takers[job]) == [f"{job}1"]
        takers["io"].cancel()
        takers["cpu"].cancel()

    run(main)


def test_nothing_comes_when_the_time_is_over_or_the_worker_is_nudged() -> None:
    async def main() -> None:
        _, dispatcher = dispatched()
        waiting_workers = dispatcher.waiting_workers(["q"])
        assert await waiting_workers.fetch("w", Demand.of(io=1, cpu=1), 0.05) == []
        waiting = asyncio.create_task(waiting_workers.fetch("w", Demand.of(io=1, cpu=1), 20))
        other = asyncio.create_task(waiting_workers.fetch("other", Demand.of(io=1, cpu=1), 20))
        await asyncio.sleep(0.01)
        waiting_workers.stop_waiting("w")
        assert await waiting == []
        assert not other.done()
        other.cancel()

    run(main)


def test_what_was_claimed_for_one_who_has_gone_goes_back_at_once() -> None:
    async def main() -> None:
        shelf, dispatcher = dispatched()
        waiting_workers = dispatcher.waiting_workers(["q"])
        waiting = asyncio.create_task(waiting_workers.fetch("w", Demand.of(io=1, cpu=1), 20))
        await asyncio.sleep(0.01)
        shelf.jobs.append("io1")
        waiting.cancel()  # which nudges the broker: its answer is for nobody
        await asyncio.sleep(0.05)
        ((back,),) = shelf.settled
        assert back.lease == Lease("io1", "w", 1)
        assert isinstance(back.outcome, Interrupted)

    run(main)


@pytest.mark.parametrize("problem", [LeaseLost("over"), ValueError("an odd row")])
def test_a_worker_whose_fetch_fails_gets_the_error_and_the_others_keep_waiting(
    problem: Exception,
) -> None:
    async def main() -> None:
        shelf, dispatcher = dispatched()
        waiting_workers = dispatcher.waiting_workers(["q"])
        shelf.problems["failing"] = problem
        other = asyncio.create_task(waiting_workers.fetch("other", Demand.of(io=1, cpu=1), 20))
        with pytest.raises(type(problem)):
            await waiting_workers.fetch("failing", Demand.of(io=9, cpu=9), 20)
        shelf.put("io1")
        assert ids(await other) == ["io1"]

    run(main)


def test_an_unavailable_broker_fails_every_waiting_fetch_and_is_asked_again_by_the_next() -> None:
    async def main() -> None:
        shelf, dispatcher = dispatched()
        waiting_workers = dispatcher.waiting_workers(["q"])
        shelf.problems["a"] = shelf.problems["b"] = Unavailable("away")
        both = [
            asyncio.create_task(waiting_workers.fetch(owner, Demand.of(io=1, cpu=1), 20))
            for owner in "ab"
        ]
        for one in both:
            with pytest.raises(Unavailable):
                await one
        shelf.problems.clear()
        shelf.put("io1")
        assert ids(await waiting_workers.fetch("a", Demand.of(io=1, cpu=1), 20)) == ["io1"]

    run(main)


def test_what_comes_while_a_batch_is_settled_is_settled_together() -> None:
    async def main() -> None:
        shelf, dispatcher = dispatched()
        shelf.slow.clear()
        first = asyncio.create_task(dispatcher.settle([_settlement("one")]))
        await asyncio.sleep(0.01)
        rest = [
            asyncio.create_task(dispatcher.settle([_settlement(job)]))
            for job in ("two", "lost", "three")
        ]
        await asyncio.sleep(0.01)
        shelf.slow.set()
        assert await first == []
        refused = [await one for one in rest]
        assert [len(batch) for batch in shelf.settled] == [1, 3]
        assert [ids(batch) for batch in map(_jobs, refused)] == [[], ["lost"], []]

    run(main)


def _jobs(leases: Sequence[Lease]) -> list[Delivery]:
    return [_delivery(lease.job, lease.owner) for lease in leases]


def test_an_outcome_that_cannot_be_recorded_is_its_own_workers_trouble() -> None:
    async def main() -> None:
        shelf, dispatcher = dispatched()
        shelf.slow.clear()
        first = asyncio.create_task(dispatcher.settle([_settlement("one")]))
        await asyncio.sleep(0.01)
        good = asyncio.create_task(dispatcher.settle([_settlement("two")]))
        bad = asyncio.create_task(dispatcher.settle([_settlement("bad")]))
        await asyncio.sleep(0.01)
        shelf.slow.set()
        await first
        assert await good == []
        with pytest.raises(ValueError, match="recorded"):
            await bad

    run(main)
