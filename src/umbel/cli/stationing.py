"""A process that serves links, from start to exit code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from umbel.app import Umbel
from umbel.cli.command_context import CommandContext
from umbel.cli.working import loop_factory
from umbel.observability.logs import Style, configure_logs
from umbel.telemetry.events import Level

if TYPE_CHECKING:
    from umbel.app.stations import Station

Open = Callable[[Umbel], "Station"]


def serve(
    frame: CommandContext, style: str, level: str, open_station: Open, *, uvloop: bool = True
) -> int:
    """Serve until told to stop. Raises what starting raises."""
    logs = configure_logs(cast(Style, style), level)
    try:
        app = frame.app_or_bare
        app.telemetry.subscribe(logs.subscriber(level), cast(Level, level))
        with asyncio.Runner(loop_factory=loop_factory(uvloop)) as runner:
            runner.run(_run(app, open_station))
        app.close()  # what its backlog holds in memory is published first
        return 0
    finally:
        logs.close()


async def _run(app: Umbel, open_station: Open) -> None:
    station = open_station(app)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, station.stop)
    await station.run()


@asynccontextmanager
async def beside(station: Station) -> AsyncIterator[None]:
    """Serve for as long as something else runs. Raises what starting raises."""
    serving = asyncio.create_task(station.run(), name="umbel station")
    both: list[asyncio.Future[Any]] = [serving, station.address]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    try:
        if serving.done():
            serving.result()
        yield
    finally:
        station.stop()
        await asyncio.wait([serving])
