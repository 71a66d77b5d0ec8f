"""``umbel dev``: everything in one process, reloaded when the code changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import nullcontext

import click

from umbel.app import Umbel
from umbel.cli.command_context import CommandContext, command
from umbel.cli.dev_banner import dev_document, print_banner
from umbel.cli.errors import report_error
from umbel.cli.output import print_note
from umbel.observability.logs import Logs, configure_logs
from umbel.processes.app_loading import APP_MODULES, AppError, find_app_module, load_app
from umbel.processes.dashboard_process import OpenDashboard, open_dev_dashboard
from umbel.processes.dev_process import run_until_change
from umbel.processes.reload import CHANGED_FILES, SourceWatcher, restart_after_change
from umbel.telemetry import events
from umbel.worker import WorkerOptions

_HOW_TO_BEGIN = f"""there is no application here: none of \
{", ".join(f"{name}.py" for name in APP_MODULES)} makes one.
Give -A module:app, or begin with tasks.py:

    from umbel import Umbel

    app = Umbel()

    @app.task
    def add(a: int, b: int) -> int:
        return a + b
"""


@command()
@click.option("--no-reload", is_flag=True, help="Do not watch the code.")
@click.option("--no-dashboard", is_flag=True, help="Do not serve the dashboard.")
@click.option(
    "--grace",
    type=float,
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds for running tasks to finish before a stop or a reload.",
)
def dev(
    context: CommandContext, no_reload: bool, no_dashboard: bool, grace: float, as_json: bool
) -> int:
    """Run everything here: a dashboard, and a worker that reloads when your code changes.

    Without -A it looks for an application in tasks.py, app.py, main.py and umbel_app.py. It creates
    or upgrades the database schema, and says so. Ctrl-C stops it; jobs that still run return to
    their queue.
    """
    address = context.address or find_app_module()
    if address is None:
        raise AppError(_HOW_TO_BEGIN)
    logs = configure_logs("json" if as_json else "pretty", brief=True)
    watcher = None if no_reload else SourceWatcher()
    try:
        app = _load_or_wait_for_change(address, watcher)
        opened = None if no_dashboard or app is None else open_dev_dashboard(app, address)
        if app is None or _run_once(app, address, logs, watcher, grace, opened, as_json):
            logs.close()
            restart_after_change(watcher.changed_files if watcher is not None else [])
    finally:
        logs.close()
    return 0


def _load_or_wait_for_change(address: str, watcher: SourceWatcher | None) -> Umbel | None:
    """Return the application; None if it could not be loaded and the code has changed since."""
    try:
        return load_app(address)
    except AppError as error:
        if watcher is None:
            raise
        report_error(error, as_json=False)
        print_note("Waiting for the code to change; Ctrl-C stops.")
        watcher.block_until_change()
        return None


def _run_once(
    app: Umbel,
    address: str,
    logs: Logs,
    watcher: SourceWatcher | None,
    grace: float,
    opened: OpenDashboard | None,
    as_json: bool,
) -> bool:
    """Run a worker to its end; return whether it ended because the code has changed."""
    app.telemetry.subscribe(_log_jobs_and_infos(logs))
    changed = os.environ.pop(CHANGED_FILES, "")
    url = "" if opened is None else opened.url
    if as_json:
        document = {"level": "info", "event": "dev", **dev_document(app, address, url)}
        logs.write(document | {"changed": changed})
    else:
        print_banner(app, address, changed, url, watching=watcher is not None)
    options = WorkerOptions(queues=tuple(app.registry.queues()), grace=grace)
    with nullcontext() if opened is None else opened.beside():
        return asyncio.run(run_until_change(app, options, watcher))


def _log_jobs_and_infos(logs: Logs) -> Callable[[events.Event], None]:
    """Return a subscriber that logs every event of a job, and other events from level info on."""
    log_all, log_infos = logs.subscriber("debug"), logs.subscriber("info")
    return lambda event: (log_all if isinstance(event, events.JobEvent) else log_infos)(event)
