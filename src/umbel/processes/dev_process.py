"""The worker of ``umbel dev``, which ends when the code changes."""

from __future__ import annotations

import asyncio

from umbel.app import Umbel
from umbel.processes.reload import SourceWatcher
from umbel.processes.worker_signals import stop_on_signals
from umbel.telemetry import events
from umbel.worker import Worker, WorkerOptions


async def run_until_change(
    app: Umbel, options: WorkerOptions, watcher: SourceWatcher | None
) -> bool:
    """Migrate the database and run a worker; return whether it ended because it must reload."""
    await _migrate(app)
    worker = app.worker(options)
    stop_on_signals(worker)
    watching = asyncio.create_task(_stop_when_changed(worker, watcher), name="umbel dev watch")
    try:
        await worker.run()
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    return worker.reloading or (not watching.cancelled() and watching.result())


async def _migrate(app: Umbel) -> None:
    before, _ = await app.backend.version()
    if applied := await app.backend.migrate():
        version = applied[-1]
        app.telemetry.emit(
            events.SchemaUpgraded(before=before, version=version)
            if before
            else events.SchemaCreated(version=version)
        )


async def _stop_when_changed(worker: Worker, watcher: SourceWatcher | None) -> bool:
    if watcher is None:
        return False
    await watcher.wait_for_change()
    if worker.stopping():
        return False
    worker.stop()
    return True
