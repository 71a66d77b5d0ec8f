"""Reads and writes the steps of all runs of a worker; concurrent writes go out in one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

from umbel.backends import Steps, Transactions
from umbel.clock import Clock
from umbel.errors import Unavailable
from umbel.messages import BodyCodec, KeptStep, Lease, Step
from umbel.tasks import Run
from umbel.worker.executors import Executors
from umbel.worker.stops import Stop, StopCause

T = TypeVar("T")

_BATCH_SIZE = 500
_RETRY_DELAY = 0.2
"""Seconds until the next try after the store did not answer."""


class _QueuedStep(NamedTuple):
    kept: KeptStep
    run: Run
    refused: asyncio.Future[bool]


class StepWriter:
    """Reads and writes steps on the worker's event loop, for coroutines and for threads."""

    def __init__(
        self,
        store: Steps,
        codec: BodyCodec,
        clock: Clock,
        transactions: Transactions,
        executors: Executors,
    ) -> None:
        self.codec = codec
        self.clock = clock
        self.transactions = transactions
        self.host: asyncio.AbstractEventLoop
        self._store = store
        self._executors = executors
        self._queue: list[_QueuedStep] = []
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Use the running event loop from now on."""
        self.host = asyncio.get_running_loop()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work in the worker's event loop and block the calling thread until it is done."""
        return asyncio.run_coroutine_threadsafe(work, self.host).result()

    async def read(self, run: Run) -> dict[int, Step]:
        """Return the kept steps of a job by number. Raise Unavailable if its run is to stop."""
        while True:
            try:
                return {step.number: step for step in await self._store.steps(run.job.id)}
            except Unavailable:
                if run.stop_reason is not None:
                    raise
            await asyncio.sleep(_RETRY_DELAY)

    async def keep(self, kept: KeptStep, run: Run) -> bool:
        """Keep a step, however long that takes. False: the lease is lost, and the run is stopped.

        If the caller is cancelled meanwhile, the step is written all the same, because it is done.
        Raises Unavailable if the run is to stop.
        """
        refused: asyncio.Future[bool] = self.host.create_future()
        refused.add_done_callback(_mark_retrieved)
        self._queue.append(_QueuedStep(kept, run, refused))
        if self._writing is None or self._writing.done():
            self._writing = self.host.create_task(self._write_all(), name="umbel-steps")
        if await asyncio.shield(refused):
            await self.lose(kept.lease)
            return False
        return True

    async def lose(self, lease: Lease) -> None:
        """Stop a run whose lease is lost."""
        self._executors.stop(lease, Stop(StopCause.LOST))

    async def _write_all(self) -> None:
        while self._queue:
            batch, self._queue = self._queue[:_BATCH_SIZE], self._queue[_BATCH_SIZE:]
            await self._write(batch)

    async def _write(self, batch: list[_QueuedStep]) -> None:
        try:
            refused = await self._store.keep([step.kept for step in batch])
        except Unavailable as error:
            await asyncio.sleep(_RETRY_DELAY)
            # Repeating is safe: the first step that is kept under a number stays.
            self._queue = [step for step in batch if not _has_given_up(step, error)] + self._queue
        except Exception as error:  # noqa: BLE001 - the store may reject a value in any way
            if len(batch) == 1:
                batch[0].refused.set_exception(error)
                return
            for step in batch:  # find the one that fails; the others are kept
                await self._write([step])
        else:
            for step in batch:
                step.refused.set_result(step.kept in refused)


def _has_given_up(step: _QueuedStep, error: Unavailable) -> bool:
    if step.run.stop_reason is None:
        return False
    step.refused.set_exception(error)
    return True


def _mark_retrieved(future: asyncio.Future[bool]) -> None:
    """Mark an error as retrieved: the caller may have been cancelled."""
    if not future.cancelled():
        future.exception()
