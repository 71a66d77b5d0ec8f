"""Routes under a crowd: everybody works, while keys are released, moved and retired."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack

from umbel.backends import Demand, WorkerEntry
from umbel.messages import Delivery, Interrupted, Outcome, Retry, Succeeded, inbox, route_gate
from umbel.testing.acts import FAILURE, RESULT, depths, ids, publish, settle, take, worker
from umbel.testing.backend import Backend, story

KEYS = [f"plan-{number}" for number in range(6)]
CREW = 4
_BACK: tuple[Outcome, ...] = (Retry(FAILURE, 0.0), Interrupted("stopping"))


class _Rooms:
    """Which keys run where at this moment, as the workers themselves see it."""

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
    b: Backend, who: WorkerEntry, index: int, rooms: _Rooms, fate: random.Random
) -> None:
    while rooms.open:
        room = Demand(fate.randint(1, 5), 0)
        found = await take(b, who.incarnation, room, queues=(inbox(index), "default"))
        rooms.enter(index, found)
        for one in found:
            await asyncio.sleep(fate.random() / 1000)
            rooms.leave(index, one)
            if fate.random() < 0.3:
                await settle(b, one, fate.choice(_BACK))
            else:
                await settle(b, one, Succeeded(RESULT))
                rooms.done.append(one.id)


async def _disturb(b: Backend, rooms: _Rooms, fate: random.Random) -> None:
    while rooms.open:
        key, index = fate.choice(KEYS), fate.randrange(CREW)
        match fate.randrange(5):
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


class Crowd:
    """What holds for one at a time holds for many at once."""

    crowd = 120
    """Jobs."""

    @story()
    async def test_no_key_is_ever_on_two_workers(self, b: Backend) -> None:
        fate, rooms = random.Random(7), _Rooms(self.crowd)
        who = [worker(f"worker-{number}") for number in range(CREW)]
        indexes = [await b.registry.enlist(one) for one in who]
        sent = [
            await publish(b, gates=(route_gate(KEYS[number % len(KEYS)]),))
            for number in range(self.crowd)
        ]
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as everybody:
            sides = [await stack.enter_async_context(b.another()) for _ in range(CREW + 1)]
            for side, one, index in zip(sides, who, indexes, strict=False):
                everybody.create_task(_work(side, one, index, rooms, fate))
            everybody.create_task(_disturb(sides[-1], rooms, fate))
        assert sorted(rooms.done) == sorted(ids(sent))
        await b.routes.sweep()
        history = await b.routes.routes(live=False, limit=100_000)
        assert [route.held for route in history] == [0] * len(history)
        assert await depths(b) == {}
        for key in KEYS:
            mine = [route for route in history if route.key == key]
            assert all(route.released is not None for route in mine[1:])
