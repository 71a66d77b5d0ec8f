"""``umbel dev``: everything in one process, reloaded when the code changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import click

from umbel.app import Umbel
from umbel.cli.answers import note
from umbel.cli.command_context import CommandContext, command
from umbel.cli.errors import AppError, tell_usage
from umbel.cli.greeting import facts, greet
from umbel.cli.loading import CANDIDATES, discover, load
from umbel.cli.reloading import Watch, restart
from umbel.cli.working import stop_on_signals
from umbel.observability.logs import Logs, configure_logs
from umbel.telemetry import events
from umbel.worker import Worker, WorkerOptions

_HOW_TO_BEGIN = f"""there is no application here: none of \
{", ".join(f"{name}.py" for name in CANDIDATES)} makes one.
Give -A module:app, or begin with tasks.py:

    from umbel import Umbel

    app = Umbel()

    @app.task
    def add(a: int, b: int) -> int:
        return a + b
"""


@command()
@click.option("--no-reload", is_flag=True, help="Do not watch the code.")
@click.option(
    "--grace",
    type=float,
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long running tasks may go on before a stop or a reload.",
)
def dev(frame: CommandContext, no_reload: bool, grace: float, as_json: bool) -> int:
    """Run everything here: a worker that reloads when your code changes.

    Without -A it looks for an application in tasks.py, app.py, main.py and umbel_app.py. The
    database is brought up to date by itself. Ctrl-C stops; jobs that run go back to their queue.
    """
    address = frame.address or discover()
    if address is None:
        raise AppError(_HOW_TO_BEGIN)
    logs = configure_logs("json" if as_json else "pretty", brief=True)
    watch = None if no_reload else Watch()
    try:
        app = _loaded(address, watch)
        if app is None or _session(app, address, logs, watch, grace, as_json):
            logs.close()
            restart(watch.changes if watch is not None else [])
    finally:
        logs.close()
    return 0


def _loaded(address: str, watch: Watch | None) -> Umbel | None:
    """The application; None when it could not be loaded and the code has changed since."""
    try:
        return load(address)
    except AppError as error:
        if watch is None:
            raise
        tell_usage(error, as_json=False)
        note("waiting for the code to change; Ctrl-C stops")
        watch.wait()
        return None


def _session(
    app: Umbel, address: str, logs: Logs, watch: Watch | None, grace: float, as_json: bool
) -> bool:
    """One life of the worker. True when it ended because the code has changed."""
    app.telemetry.subscribe(_jobs_and_news(logs))
    changed = os.environ.pop("UMBEL_DEV_CHANGED", "")
    if as_json:
        logs.write({"level": "info", "event": "dev", **facts(app, address), "changed": changed})
    else:
        greet(app, address, changed, watching=watch is not None)
    options = WorkerOptions(queues=tuple(app.registry.queues()), grace=grace)
    return asyncio.run(_run(app, options, watch))


def _jobs_and_news(logs: Logs) -> Callable[[events.Event], None]:
    """Every event of a job, and of the rest what is not for debugging."""
    jobs, news = logs.subscriber("debug"), logs.subscriber("info")
    return lambda event: (jobs if isinstance(event, events.JobEvent) else news)(event)


async def _run(app: Umbel, options: WorkerOptions, watch: Watch | None) -> bool:
    await app.backend.migrate()
    worker = app.worker(options)
    stop_on_signals(worker)
    watching = asyncio.create_task(_stop_when_changed(worker, watch), name="umbel dev watch")
    try:
        await worker.run()
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    return worker.reloading or (not watching.cancelled() and watching.result())


async def _stop_when_changed(worker: Worker, watch: Watch | None) -> bool:
    if watch is None:
        return False
    await watch.changed()
    if worker.stopping():
        return False
    worker.stop()
    return True
