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

_Ending = tuple[Any, BaseException | None]


class TrioGuest:
    """Runs activations inside the guest and lets asyncio await them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    async def call(self, activation: Activation) -> Any:
        """Run it under Trio; cancelling the asyncio side cancels it there and waits for its end."""
        ended: asyncio.Future[_Ending] = asyncio.get_running_loop().create_future()
        scope = trio.CancelScope()
        self._nursery.start_soon(_run, activation, scope, ended, name=activation.task.name)
        while not ended.done():
            try:
                await asyncio.wait([ended])
            except asyncio.CancelledError:
                scope.cancel()
        value, error = ended.result()
        if error is not None:
            raise error
        return value


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
