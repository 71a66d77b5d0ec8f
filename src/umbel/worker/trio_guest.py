"""A Trio loop as guest on the worker's asyncio loop, for tasks declared ``loop="trio"``.

Same thread, same moment: a Trio task may await Trio code natively while asyncio tasks run beside
it. Started only when such a task is registered.

A task can end the whole loop: by an error in a callback that it left there, or in a system task.
Then the loop is started again, and the other jobs that ran in it run again, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from umbel.telemetry import Telemetry, events
from umbel.worker.activation import Activation
from umbel.worker.coroutines import call_here
from umbel.worker.stops import Stop, Why

_Ending = tuple[Any, BaseException | None]

_MAX_SUSPECTS = 1_000
"""Jobs that are remembered because they ran when the loop was ended."""


class _Loop:
    """One run of the Trio loop."""

    def __init__(self) -> None:
        host = asyncio.get_running_loop()
        self.nursery: asyncio.Future[trio.Nursery] = host.create_future()
        self.over: asyncio.Future[BaseException | None] = host.create_future()
        """Done when the loop has ended, with the error that ended it."""
        self.jobs: set[str] = set()
        """Jobs that run in it, or ran when it was ended."""
        self.blamed: set[str] = set()
        """The job that has ended it, as far as can be told."""


class TrioGuest:
    """Runs activations inside the guest and lets asyncio await them."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._suspects: set[str] = set()
        self._one_suspect = asyncio.Lock()
        self._leaving = False
        self._start()

    async def stop(self) -> None:
        """End it. Raises what it raised."""
        nursery = await self._loop.nursery
        self._leaving = True
        nursery.cancel_scope.cancel()
        error = await self._loop.over
        if error is not None:
            raise error

    async def call(self, activation: Activation) -> Any:
        """Run it under Trio; cancelling the asyncio side cancels it there and waits for its end.

        Of the jobs that ran when the loop was ended only one runs at a time, beside others. If the
        loop is ended again, it is known which of them does it: that one fails.
        """
        if activation.delivery.id not in self._suspects:
            return await self._call(activation)
        async with self._one_suspect:
            return await self._call(activation)

    async def _call(self, activation: Activation) -> Any:
        loop, job = self._loop, activation.delivery.id
        nursery = await asyncio.shield(loop.nursery)
        ended: asyncio.Future[_Ending] = asyncio.get_running_loop().create_future()
        scope = trio.CancelScope()
        nursery.start_soon(_run, activation, scope, ended, name=activation.task.name)
        loop.jobs.add(job)
        while not ended.done():
            try:
                await asyncio.wait([ended])
            except asyncio.CancelledError:
                scope.cancel()
        value, error = ended.result()
        if nursery.cancel_scope.cancel_called and not scope.cancel_called and not self._leaving:
            raise _crashed(job, loop, await asyncio.shield(loop.over))
        loop.jobs.discard(job)
        self._suspects.discard(job)
        if error is not None:
            raise error
        return value

    def _start(self) -> None:
        host, loop = asyncio.get_running_loop(), _Loop()

        async def live() -> None:
            async with trio.open_nursery() as nursery:
                loop.nursery.set_result(nursery)
                await trio.sleep_forever()

        def done(outcome: Any) -> None:
            error: BaseException | None = getattr(outcome, "error", None)
            loop.over.set_result(error)
            if not self._leaving:
                self._suspect(loop)
                why = _why(error)
                self._telemetry.emit(events.ServiceFailed(service="trio", error=why, delay=0))
                self._start()

        self._loop = loop
        trio.lowlevel.start_guest_run(
            live,
            done_callback=done,
            run_sync_soon_threadsafe=host.call_soon_threadsafe,
            run_sync_soon_not_threadsafe=host.call_soon,
            host_uses_signal_set_wakeup_fd=True,
        )

    def _suspect(self, loop: _Loop) -> None:
        """Any job that ran when the loop was ended may have done it."""
        known = loop.jobs & self._suspects
        loop.blamed = known or (loop.jobs if len(loop.jobs) == 1 else set())
        if len(self._suspects) > _MAX_SUSPECTS:
            self._suspects.clear()
        self._suspects |= loop.jobs
        self._suspects -= loop.blamed


def _crashed(job: str, loop: _Loop, error: BaseException | None) -> BaseException:
    """What becomes of a job that ran when the loop was ended: it fails, or runs again."""
    if job not in loop.blamed:
        return Stop(Why.INTERRUPT, "the worker's Trio loop was ended by a task")
    return RuntimeError(
        f"the worker's Trio loop was ended while this job ran: {_why(error)}; do not raise in"
        " system tasks and in callbacks of run_sync_soon"
    )


def _why(error: BaseException | None) -> str:
    return repr(error.__cause__ or error if error is not None else None)


async def _run(
    activation: Activation, scope: trio.CancelScope, ended: asyncio.Future[_Ending]
) -> None:
    # The ending travels as a plain value: asyncio treats some exceptions in futures specially.
    ending: _Ending = (None, asyncio.CancelledError())
    try:
        with scope:  # takes Trio's own Cancelled out of what is raised, also out of groups
            ending = (await call_here(activation), None)
    except trio.Cancelled:
        raise  # the guest itself is being stopped
    except BaseException as error:  # noqa: BLE001 - a crash here would end every guest task
        ending = (None, error)
    finally:
        ended.set_result(ending)


@asynccontextmanager
async def trio_guest(telemetry: Telemetry) -> AsyncIterator[TrioGuest]:
    """A guest for the time of the block. Always leave it: an abandoned guest dies silently."""
    guest = TrioGuest(telemetry)
    try:
        yield guest
    finally:
        await guest.stop()
