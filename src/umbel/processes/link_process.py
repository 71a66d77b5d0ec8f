"""A router or publisher daemon as a process, from its start to its exit code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from umbel.app import Umbel
from umbel.observability.logs import configure_logs
from umbel.observability.rendering import LogStyle
from umbel.processes.app_loading import load_app_or_bare
from umbel.processes.event_loop import loop_factory
from umbel.telemetry.events import Level

if TYPE_CHECKING:
    from umbel.app.link_service import LinkService

OpenServer = Callable[[Umbel], "LinkService"]


def run_link_server(
    address: str | None, style: str, level: str, open_server: OpenServer, *, uvloop: bool = True
) -> int:
    """Serve links until SIGTERM or SIGINT; return the exit code. Raises what starting raises."""
    logs = configure_logs(cast(LogStyle, style), level)
    try:
        app = load_app_or_bare(address)
        app.telemetry.subscribe(logs.subscriber(level), cast(Level, level))
        with asyncio.Runner(loop_factory=loop_factory(uvloop)) as runner:
            runner.run(_serve(app, open_server))
        app.close()  # publishes what its backlog holds in memory
        return 0
    finally:
        logs.close()


async def _serve(app: Umbel, open_server: OpenServer) -> None:
    server = open_server(app)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    await server.run()


@asynccontextmanager
async def serving(server: LinkService) -> AsyncIterator[None]:
    """Serve links while the block runs. Raises what starting raises."""
    task = asyncio.create_task(server.run(), name="umbel link server")
    started: list[asyncio.Future[Any]] = [task, server.address]
    await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED)
    try:
        if task.done():
            task.result()
        yield
    finally:
        server.stop()
        await asyncio.wait([task])
