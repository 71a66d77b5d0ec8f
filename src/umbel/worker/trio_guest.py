"""A Trio loop as guest on the worker's asyncio loop, for tasks declared ``loop="trio"``.

Same thread, same moment: a Trio task may await Trio code natively while asyncio tasks run beside
it. Started only when such a task is registered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from umbel.worker.activation import Activation
from umbel.worker.coroutines import call_here


class TrioGuest:
    """Runs activations inside the guest and lets asyncio await them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    async def call(self, activation: Activation) -> Any:
        """Run it under Trio; cancelling the asyncio side cancels it there and waits for its end."""
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        scope = trio.CancelScope()
        self._nursery.start_soon(_run, activation, scope, ended, name=activation.task.name)
        while True:
            try:
                return await asyncio.shield(ended)
            except asyncio.CancelledError:
                if ended.done():
                    raise
                scope.cancel()
                await asyncio.wait([ended])
                raise


async def _run(activation: Activation, scope: trio.CancelScope, ended: asyncio.Future[Any]) -> None:
    try:
        with scope:
            try:
                value = await call_here(activation)
            except trio.Cancelled:
                raise  # belongs to the scope; it must not leak into asyncio
            except BaseException as error:  # noqa: BLE001 - a crash here would end every guest task
                _fail(ended, error)
            else:
                ended.set_result(value)
    finally:
        if not ended.done():
            ended.cancel()


def _fail(ended: asyncio.Future[Any], error: BaseException) -> None:
    # asyncio re-raises these two out of its loop, and refuses StopIteration in a future.
    if isinstance(error, SystemExit | KeyboardInterrupt | StopIteration):
        error = RuntimeError(f"the task raised {type(error).__name__}: {error}")
    ended.set_exception(error)


@asynccontextmanager
async def trio_guest() -> AsyncIterator[TrioGuest]:
    """A guest for the time of the block. Always leave it: an abandoned guest dies silently."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[trio.Nursery] = loop.create_future()
    over: asyncio.Future[Any] = loop.create_future()

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            ready.set_result(nursery)
            await trio.sleep_forever()

    trio.lowlevel.start_guest_run(
        live,
        done_callback=over.set_result,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        run_sync_soon_not_threadsafe=loop.call_soon,
        host_uses_signal_set_wakeup_fd=True,
    )
    nursery = await ready
    try:
        yield TrioGuest(nursery)
    finally:
        nursery.cancel_scope.cancel()
        (await over).unwrap()
