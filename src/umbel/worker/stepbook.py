"""Keeps the steps of all runs of a worker: what ends at the same time is written together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from umbel.backends import Transactions
from umbel.clock import Clock
from umbel.errors import Unavailable
from umbel.messages import BodyCodec, Kept, Lease, Step
from umbel.tasks import Run
from umbel.worker.intake import Intake

T = TypeVar("T")

_BATCH = 500
_AGAIN = 0.2
"""Seconds after which a store that did not answer is asked again."""


class _Entry(NamedTuple):
    kept: Kept
    run: Run
    refused: asyncio.Future[bool]


class StepBook:
    """Reads and writes steps on the worker's event loop, for coroutines and for threads."""

    def __init__(
        self,
        intake: Intake,
        codec: BodyCodec,
        clock: Clock,
        transactions: Transactions,
        lost: Callable[[Lease], None],
    ) -> None:
        self.codec = codec
        self.clock = clock
        self.transactions = transactions
        self.host: asyncio.AbstractEventLoop
        self._intake = intake
        self._lost = lost
        self._line: list[_Entry] = []
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Work on the running loop from now on."""
        self.host = asyncio.get_running_loop()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Block a thread until work on the worker's loop is done."""
        return asyncio.run_coroutine_threadsafe(work, self.host).result()

    async def read(self, run: Run) -> dict[int, Step]:
        """What is kept of a job, by number. Raises Unavailable when its run is to stop."""
        while True:
            try:
                return {step.number: step for step in await self._intake.steps(run.job.id)}
            except Unavailable:
                if run.stop_reason is not None:
                    raise
            await asyncio.sleep(_AGAIN)

    async def keep(self, kept: Kept, run: Run) -> bool:
        """Keep a step, however long that takes. False: the lease is lost, and its run is stopped.

        Whoever is cancelled meanwhile leaves it in the line: done is done. Raises Unavailable
        when its run is to stop.
        """
        refused: asyncio.Future[bool] = self.host.create_future()
        refused.add_done_callback(_seen)
        self._line.append(_Entry(kept, run, refused))
        if self._writing is None or self._writing.done():
            self._writing = self.host.create_task(self._write_on(), name="umbel-steps")
        if await asyncio.shield(refused):
            await self.lose(kept.lease)
            return False
        return True

    async def lose(self, lease: Lease) -> None:
        """Stop a run whose lease is lost."""
        self._lost(lease)

    async def _write_on(self) -> None:
        while self._line:
            batch, self._line = self._line[:_BATCH], self._line[_BATCH:]
            await self._write(batch)

    async def _write(self, batch: list[_Entry]) -> None:
        try:
            refused = await self._intake.keep([one.kept for one in batch])
        except Unavailable as error:
            await asyncio.sleep(_AGAIN)
            # Repeating is safe: the first that is kept in a place stays.
            self._line = [one for one in batch if not _given_up(one, error)] + self._line
        except Exception as error:  # noqa: BLE001 - whatever the store objects to
            if len(batch) == 1:
                batch[0].refused.set_exception(error)
                return
            for one in batch:  # one step's fault is not the others'
                await self._write([one])
        else:
            for one in batch:
                one.refused.set_result(one.kept in refused)


def _given_up(one: _Entry, error: Unavailable) -> bool:
    if one.run.stop_reason is None:
        return False
    one.refused.set_exception(error)
    return True


def _seen(future: asyncio.Future[bool]) -> None:
    """Nobody may be left to hear of an error."""
    if not future.cancelled():
        future.exception()
