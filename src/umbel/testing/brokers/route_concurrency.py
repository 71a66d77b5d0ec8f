"""Routes under concurrency: many workers run, while keys are released, moved and retired."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack

from umbel.backends import Demand, WorkerEntry
from umbel.messages import Delivery, Interrupted, Outcome, Retry, Succeeded, inbox, route_gate
from umbel.testing.actions import FAILURE, RESULT, claim, depths, ids, publish, settle, worker
from umbel.testing.backend import Adapters, backend_test

KEYS = [f"plan-{number}" for number in range(6)]
CREW = 4
_BACK: tuple[Outcome, ...] = (Retry(FAILURE, 0.0), Interrupted("stopping"))


class _RunningKeys:
    """Which keys are running on which workers, as the workers themselves see it."""

    def __init__(self, jobs: int) -> None:
        self._here: dict[str, Counter[int]] = {}
        self._jobs = jobs
        self.done: list[str] = []

    @property
    def open(self) -> bool:
        return len(self.done) < self._jobs

    def enter(self, index: int, held: Sequence[Delivery]) -> None:
        for one in held:
            here = self._here.setdefault(one.slots[-1].gate, Counter())
            here[index] += 1
            if len(+here) > 1:
                raise AssertionError(f"{one.slots[-1].gate} runs in {dict(here)}")

    def leave(self, index: int, one: Delivery) -> None:
        self._here[one.slots[-1].gate][index] -= 1


async def _work(
    b: Adapters,
    workers: WorkerEntry,
    index: int,
    running_keys: _RunningKeys,
    random_source: random.Random,
) -> None:
    while running_keys.open:
        room = Demand.of(io=random_source.randint(1, 5))
        found = await claim(b, workers.incarnation, room, queues=(inbox(index), "default"))
        running_keys.enter(index, found)
        for one in found:
            await asyncio.sleep(random_source.random() / 1000)
            running_keys.leave(index, one)
            if random_source.random() < 0.3:
                await settle(b, one, random_source.choice(_BACK))
            else:
                await settle(b, one, Succeeded(RESULT))
                running_keys.done.append(one.id)


async def _disturb(b: Adapters, running_keys: _RunningKeys, random_source: random.Random) -> None:
    while running_keys.open:
        key, index = random_source.choice(KEYS), random_source.randrange(CREW)
        match random_source.randrange(5):
            case 0:
                await b.routes.release(key)
            case 1:
                await b.routes.move(key, index)
            case 2:
                await b.routes.retire(index)
                await b.routes.retire(index, False)
            case 3:
                await b.routes.sweep(idle=0)
            case _:
                await asyncio.sleep(0.01)


class ConcurrentRouting:
    """Routing also holds if many workers fetch at the same time."""

    job_count = 120
    """The number of jobs to publish."""

    @backend_test()
    async def test_no_key_is_ever_on_two_workers(self, b: Adapters) -> None:
        random_source, running_keys = random.Random(7), _RunningKeys(self.job_count)
        workers = [worker(f"worker-{number}") for number in range(CREW)]
        indexes = [await b.registry.register(one) for one in workers]
        sent = [
            await publish(b, gates=(route_gate(KEYS[number % len(KEYS)]),))
            for number in range(self.job_count)
        ]
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as workers_group:
            sides = [await stack.enter_async_context(b.another()) for _ in range(CREW + 1)]
            for side, one, index in zip(sides, workers, indexes, strict=False):
                workers_group.create_task(_work(side, one, index, running_keys, random_source))
            workers_group.create_task(_disturb(sides[-1], running_keys, random_source))
        assert sorted(running_keys.done) == sorted(ids(sent))
        await b.routes.sweep()
        history = await b.routes.routes(live=False, limit=100_000)
        assert [route.held for route in history] == [0] * len(history)
        assert await depths(b) == {}
        for key in KEYS:
            mine = [route for route in history if route.key == key]
            assert all(route.released is not None for route in mine[1:])
