"""A Trio loop as guest of the worker's asyncio loop, for tasks declared with ``loop="trio"``.

Both run in the same thread: a Trio task awaits Trio code natively while asyncio tasks run
concurrently. The guest is started only if such a task is registered.

A task can crash the whole Trio loop: by an error in a callback that it left there, or in a system
task. Then the loop is started again, and the other jobs that ran in it are run again, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from umbel.telemetry import Telemetry, events
from umbel.worker.coroutines import call_task
from umbel.worker.runs import Activation
from umbel.worker.stops import Stop, StopCause

_Result = tuple[Any, BaseException | None]

_MAX_SUSPECTS = 1_000
"""Maximum number of jobs remembered because they ran when the loop crashed."""


class _Loop:
    """One run of the Trio loop."""

    def __init__(self) -> None:
        host = asyncio.get_running_loop()
        self.nursery: asyncio.Future[trio.Nursery] = host.create_future()
        self.over: asyncio.Future[BaseException | None] = host.create_future()
        """Done when the loop has ended, with the error that crashed it."""
        self.jobs: set[str] = set()
        """Jobs that run in it, or ran when it crashed."""
        self.blamed: set[str] = set()
        """The job that crashed it, if that is known."""


class TrioGuest:
    """Runs activations in the Trio loop; asyncio code awaits them."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._suspects: set[str] = set()
        self._suspect_lock = asyncio.Lock()
        self._is_stopping = False
        self._start()

    async def stop(self) -> None:
        """Stop the loop. Raise the error that it ended with."""
        nursery = await self._loop.nursery
        self._is_stopping = True
        nursery.cancel_scope.cancel()
        error = await self._loop.over
        if error is not None:
            raise error

    async def call(self, activation: Activation) -> Any:
        """Run it under Trio. A cancellation of the caller cancels the Trio task and waits for it.

        Of the jobs that ran when the loop crashed, only one runs at a time, beside other jobs. If
        the loop crashes again, that job has crashed it, and it fails.
        """
        if activation.delivery.id not in self._suspects:
            return await self._call(activation)
        async with self._suspect_lock:
            return await self._call(activation)

    async def _call(self, activation: Activation) -> Any:
        loop, job = self._loop, activation.delivery.id
        nursery = await asyncio.shield(loop.nursery)
        ended: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        scope = trio.CancelScope()
        nursery.start_soon(_run, activation, scope, ended, name=activation.task.name)
        loop.jobs.add(job)
        while not ended.done():
            try:
                await asyncio.wait([ended])
            except asyncio.CancelledError:
                scope.cancel()
        value, error = ended.result()
        if nursery.cancel_scope.cancel_called and not scope.cancel_called and not self._is_stopping:
            raise _crashed(job, loop, await asyncio.shield(loop.over))
        loop.jobs.discard(job)
        self._suspects.discard(job)
        if error is not None:
            raise error
        return value

    def _start(self) -> None:
        host, loop = asyncio.get_running_loop(), _Loop()

        async def run_forever() -> None:
            async with trio.open_nursery() as nursery:
                loop.nursery.set_result(nursery)
                await trio.sleep_forever()

        def done(outcome: Any) -> None:
            error: BaseException | None = getattr(outcome, "error", None)
            loop.over.set_result(error)
            if not self._is_stopping:
                self._suspect(loop)
                text = _describe(error)
                self._telemetry.emit(events.ServiceFailed(service="trio", error=text, delay=0))
                self._start()

        self._loop = loop
        trio.lowlevel.start_guest_run(
            run_forever,
            done_callback=done,
            run_sync_soon_threadsafe=host.call_soon_threadsafe,
            run_sync_soon_not_threadsafe=host.call_soon,
            host_uses_signal_set_wakeup_fd=True,
        )

    def _suspect(self, loop: _Loop) -> None:
        """Remember the jobs that ran when the loop crashed: any of them may have crashed it."""
        known = loop.jobs & self._suspects
        loop.blamed = known or (loop.jobs if len(loop.jobs) == 1 else set())
        if len(self._suspects) > _MAX_SUSPECTS:
            self._suspects.clear()
        self._suspects |= loop.jobs
        self._suspects -= loop.blamed


def _crashed(job: str, loop: _Loop, error: BaseException | None) -> BaseException:
    """Return the error of a job that ran when the loop crashed: it fails, or is run again."""
    if job not in loop.blamed:
        return Stop(StopCause.INTERRUPT, "the worker's Trio loop was crashed by a task")
    return RuntimeError(
        f"the worker's Trio loop crashed while this job ran: {_describe(error)}; do not raise in"
        " system tasks and in callbacks of run_sync_soon"
    )


def _describe(error: BaseException | None) -> str:
    return repr(error.__cause__ or error if error is not None else None)


async def _run(
    activation: Activation, scope: trio.CancelScope, ended: asyncio.Future[_Result]
) -> None:
    # The result is a plain value: asyncio treats some exceptions in futures specially.
    result: _Result = (None, asyncio.CancelledError())
    try:
        with scope:  # removes Trio's own Cancelled from what is raised, also from exception groups
            result = (await call_task(activation), None)
    except trio.Cancelled:
        raise  # the Trio loop itself is being stopped
    except BaseException as error:  # noqa: BLE001 - an error here would crash the Trio loop
        result = (None, error)
    finally:
        ended.set_result(result)


@asynccontextmanager
async def trio_guest(telemetry: Telemetry) -> AsyncIterator[TrioGuest]:
    """Run a guest for the time of the block. Always exit the block, or the guest ends silently."""
    guest = TrioGuest(telemetry)
    try:
        yield guest
    finally:
        await guest.stop()
