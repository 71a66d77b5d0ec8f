"""The router as a separate process: many workers share its few connections.

It has no state of its own. Leases belong to the workers' incarnations, and the store has the jobs:
the process may die at any time, and the one that replaces it continues.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from umbel.backends import Broker, Demand
from umbel.clock import Clock
from umbel.errors import Unavailable
from umbel.messages import Attempt, Delivery, Interrupted, Lease, Settlement
from umbel.router.router import Router

_BATCH = 500
_TURN_SECONDS = 0.05
"""Maximum time of a fetch for one worker while another waits that could start other jobs."""


class FetchRequest:
    """The fetch of a worker that has capacity and waits."""

    def __init__(self, owner: str, own: Sequence[str], demand: Demand, until: float) -> None:
        self.owner = owner
        self.own = own
        self.demand = demand
        self.until = until
        self.answer: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()

    @property
    def capacity(self) -> int:
        """How many jobs could start there."""
        return sum(self.demand.free.values())


class WaitingWorkers:
    """The workers that wait for the same queues. The broker is asked for one of them at a time.

    That is the worker with the most capacity, and of several the one that has waited longest. It
    gets as many jobs as it has capacity for, and the next worker follows immediately. Workers take
    turns while another one could start jobs that this one cannot, or has an inbox.
    """

    def __init__(self, broker: Broker, queues: Sequence[str], clock: Clock) -> None:
        self._broker = broker
        self._queues = queues
        self._clock = clock
        self._requests: list[FetchRequest] = []
        self._current: FetchRequest | None = None
        self._had_turn: set[FetchRequest] = set()
        """The requests that had a turn since all requests had one."""
        self._last_demand = Demand()
        """The demand of the last fetch."""
        self._task: asyncio.Task[None] | None = None

    async def fetch(
        self, owner: str, demand: Demand, wait: float, own: Sequence[str] = ()
    ) -> list[Delivery]:
        """Return jobs that this worker can start now. Raises LeaseLost, Unavailable."""
        request = FetchRequest(owner, own, demand, self._clock.monotonic() + wait)
        self._requests.append(request)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve(), name="umbel-dispatch")
        elif self._current is not None and _fits_more(demand, self._current.demand):
            self._broker.stop_waiting()
        try:
            async with asyncio.timeout(max(wait, 0) + 1.0):
                return await request.answer
        except TimeoutError:
            return []
        finally:
            self.give_up(request)

    def give_up(self, request: FetchRequest) -> None:
        """Remove a request whose worker does not wait any more."""
        self._had_turn.discard(request)
        if request in self._requests:
            self._requests.remove(request)
        if request is self._current:
            self._broker.stop_waiting()

    def stop_waiting(self, owner: str) -> None:
        """Answer this worker immediately with an empty list."""
        for request in [request for request in self._requests if request.owner == owner]:
            if not request.answer.done():
                request.answer.set_result([])
            self.give_up(request)

    def close(self) -> None:
        """Stop serving."""
        if self._task is not None:
            self._task.cancel()

    async def _serve(self) -> None:
        while self._requests:
            request, wait = self._next()
            self._current, self._last_demand = request, request.demand
            try:
                queues = [*request.own, *self._queues]
                found = await self._broker.fetch(queues, request.demand, request.owner, wait)
                await self._hand_over(request, found)
            except Unavailable as error:
                for one in self._requests:
                    _fail(one, error)
                self._requests.clear()
            except Exception as error:  # noqa: BLE001 - raised to this worker; the others keep waiting
                _fail(request, error)
                self._drop(request)
            finally:
                self._current = None

    def _next(self) -> tuple[FetchRequest, float]:
        """Return the next request, and how long its fetch may wait."""
        if not any(one not in self._had_turn for one in self._requests):
            self._had_turn.clear()
        left = [one for one in self._requests if one not in self._had_turn]
        others = [one for one in left if _fits_more(one.demand, self._last_demand)]
        request = max(others or left, key=lambda one: one.capacity)
        self._had_turn.add(request)
        wait = request.until - self._clock.monotonic()
        if any(one.own or _fits_more(one.demand, request.demand) for one in self._others(request)):
            wait = min(wait, _TURN_SECONDS)
        return request, wait

    def _others(self, request: FetchRequest) -> list[FetchRequest]:
        return [one for one in self._requests if one is not request]

    async def _hand_over(self, request: FetchRequest, found: list[Delivery]) -> None:
        waits = not request.answer.done()
        if waits and (found or self._clock.monotonic() >= request.until):
            request.answer.set_result(found)
            self._drop(request)
        elif found:  # the worker stopped waiting while its jobs were claimed
            await self._put_back(found)

    async def _put_back(self, found: list[Delivery]) -> None:
        now = self._clock.now()
        reason = "its worker stopped waiting for it"
        back = [
            Settlement(
                lease=one.lease,
                outcome=Interrupted(reason),
                attempt=Attempt(one.attempt, "", now, now, "interrupted", reason=reason),
            )
            for one in found
        ]
        # If that fails, the owner's next ``extend`` puts them back.
        with suppress(Unavailable):
            await self._broker.settle(back)

    def _drop(self, request: FetchRequest) -> None:
        self._had_turn.discard(request)
        if request in self._requests:
            self._requests.remove(request)


class Dispatcher:
    """One broker, shared by the routers of many workers."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._groups: dict[tuple[str, ...], WaitingWorkers] = {}
        self._pending: list[tuple[Sequence[Settlement], asyncio.Future[list[Lease]]]] = []
        self._settling: asyncio.Task[None] | None = None

    def waiting_workers(self, queues: Sequence[str]) -> WaitingWorkers:
        """Return the workers that wait for these queues."""
        found = self._groups.get(tuple(queues))
        if found is None:
            found = self._groups[tuple(queues)] = WaitingWorkers(
                self._broker, tuple(queues), self._clock
            )
        return found

    async def settle(self, settlements: Sequence[Settlement]) -> list[Lease]:
        """Settle in one batch with settlements of other workers. See ``Broker.settle``."""
        future: asyncio.Future[list[Lease]] = asyncio.get_running_loop().create_future()
        self._pending.append((settlements, future))
        if self._settling is None or self._settling.done():
            self._settling = asyncio.create_task(self._settle_all(), name="umbel-settling")
        return await future

    async def close(self) -> None:
        """Stop serving."""
        for waiting_workers in self._groups.values():
            waiting_workers.close()
        if self._settling is not None:
            await asyncio.wait([self._settling], timeout=1.0)

    async def _settle_all(self) -> None:
        while self._pending:
            batch, size = [], 0
            while self._pending and size < _BATCH:
                batch.append(self._pending.pop(0))
                size += len(batch[-1][0])
            await self._settle_together(batch)

    async def _settle_together(
        self, batch: list[tuple[Sequence[Settlement], asyncio.Future[list[Lease]]]]
    ) -> None:
        try:
            refused = await self._broker.settle([one for part, _ in batch for one in part])
        except Exception as error:  # noqa: BLE001 - raised to the workers that it concerns
            if len(batch) == 1 or isinstance(error, Unavailable):
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                return
            for one in batch:  # settle each worker's batch alone: one may be at fault
                await self._settle_together([one])
            return
        lost = Counter(refused)
        # Backwards: if a lease was settled twice, the later settlement was refused.
        for part, future in reversed(batch):
            own = [one.lease for one in reversed(part) if _take_one(lost, one.lease)]
            if not future.done():
                future.set_result(own[::-1])


class SharedRouter(Router):
    """The router of one worker, in a process that routes for many workers."""

    def __init__(self, dispatcher: Dispatcher, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._dispatcher = dispatcher
        self._owner = ""

    def stop_waiting(self) -> None:
        """Make the waiting fetch of this worker return."""
        self._dispatcher.waiting_workers(self._queues).stop_waiting(self._owner)

    async def close(self) -> None:
        """Stop waiting. The connections stay open, because other workers share them."""
        self.stop_waiting()

    async def _claim(
        self, owner: str, demand: Demand, wait: float, own: Sequence[str]
    ) -> list[Delivery]:
        self._owner = owner
        return await self._dispatcher.waiting_workers(self._queues).fetch(owner, demand, wait, own)

    async def _record(self, settlements: Sequence[Settlement]) -> list[Lease]:
        return await self._dispatcher.settle(settlements)


def _fits_more(demand: Demand, than: Demand) -> bool:
    """Return whether it has capacity for a kind for which the other one has none."""
    return any(many > 0 >= than.capacity(kind) for kind, many in demand.free.items())


def _take_one(lost: Counter[Lease], lease: Lease) -> bool:
    lost[lease] -= 1
    return lost[lease] >= 0


def _fail(request: FetchRequest, error: Exception) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)
