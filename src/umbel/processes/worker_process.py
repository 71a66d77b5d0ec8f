"""One worker process, from its start to its exit code."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

from umbel.app import Umbel
from umbel.clock import SystemClock
from umbel.errors import ConfigurationError, IndexTaken
from umbel.observability.logs import LEVELS, Logs, configure_logs
from umbel.observability.rendering import LogStyle
from umbel.processes.app_loading import load_app
from umbel.processes.event_loop import loop_factory
from umbel.processes.exit_codes import USAGE
from umbel.processes.fleet_member import FleetMember
from umbel.processes.reload import restart_process
from umbel.processes.worker_signals import collect_late_stop_signals, stop_on_signals
from umbel.telemetry import events
from umbel.telemetry.emitter import Subscriber
from umbel.telemetry.events import Level
from umbel.worker import Worker, WorkerOptions
from umbel.worker.exit_requests import run_despite_exits
from umbel.worker.options import default_name, replica_ordinal

_PYTHON_GC_THRESHOLD = (700, 10, 10)
_LOGGED_ONCE = (
    events.InboxUnsigned,
    events.InboxClosed,
    events.SigningOff,
    events.SigningNotInstalled,
    events.UserKeyUnusable,
)
"""Events that are the same in every process of a fleet."""
_EXIT_DELAY_SECONDS = 5.0
"""How long threads that tasks left behind may delay the end of a stopped process."""


def run_worker(address: str | None, style: str, level: str, given: Mapping[str, Any]) -> int:
    """Run a worker until it is stopped; return the exit code.

    ``given`` are the options of ``umbel worker``, by their names in Python. Raises what starting
    the worker raises. In a fleet only one child reports a wrong application or option.
    """
    member = FleetMember.from_environment()
    if member is not None:
        member.end_with_parent()
    try:
        return _run_worker(address, style, level, given, member)
    except IndexTaken:
        raise  # each process has an index of its own
    except ConfigurationError:
        if member is None or member.may_report_error():
            raise
        return USAGE


def _run_worker(
    address: str | None,
    style: str,
    level: str,
    given: Mapping[str, Any],
    member: FleetMember | None,
) -> int:
    # Before the application is imported, so that logging which it configures itself takes effect.
    logs = configure_logs(cast(LogStyle, style), level)
    try:
        app = load_app(address)
        subscriber = logs.subscriber(level)
        if not _is_first(given):
            subscriber = _without_shared_events(subscriber)
        app.telemetry.subscribe(subscriber, cast(Level, level))
        options = _options(app, given)
        if LEVELS[level] <= LEVELS["warning"] and _is_first(given):
            _warn_of_unused_queues(app, options.queues, logs)
            _warn_of_unused_tables(app, logs)
        _tune_garbage_collector()
        with asyncio.Runner(loop_factory=loop_factory(options.uvloop)) as runner:
            serving = _serve(app, options, logs, given, in_fleet=member is not None)
            worker = run_despite_exits(runner.get_loop(), serving, app.telemetry)
            late_signals = collect_late_stop_signals(runner)
            if not worker.reloading:
                _exit_despite_threads(logs)
    finally:
        logs.close()
    if worker.reloading and not late_signals:
        if member is not None:
            member.to_environment()
        restart_process()
    return 0


def _tune_garbage_collector() -> None:
    """Exclude what is loaded from collection; scanning it took a tenth of a busy worker's time."""
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == _PYTHON_GC_THRESHOLD:  # otherwise the application has set its own
        gc.set_threshold(10_000, 20, 20)


def _options(app: Umbel, given: Mapping[str, Any]) -> WorkerOptions:
    options: dict[str, Any] = {
        "queues": _queues(app, given.get("queues")),
        "name": _worker_name(given.get("name"), given.get("index")),
        **_index_options(given.get("index"), given.get("of"), given.get("replica")),
        "uvloop": not given.get("no_uvloop"),
        "inbox": not given.get("no_inbox"),
        "signing": not given.get("no_signing"),
        "scheduler": not given.get("no_scheduler"),
    }
    options |= {name: given.get(name) for name in ("io", "cpu", "lease", "grace")}
    options["order"] = _order(given.get("order"))
    options["weights"] = _weights(given.get("weights"))
    return WorkerOptions(**{name: value for name, value in options.items() if value is not None})


def _queues(app: Umbel, text: str | None) -> tuple[str, ...]:
    """Return the queues named in ``a,b``; without a text, every queue of the tasks."""
    if text is None:
        return tuple(app.registry.queues())
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    if not names:
        raise ConfigurationError(
            f"--queues {text}: is empty; give names, as in mail,reports, or leave it out"
            " to serve every queue of the tasks"
        )
    return names


def _is_first(given: Mapping[str, Any]) -> bool:
    """Return whether the process is alone, or the first child of a fleet."""
    return given.get("of") is None or not given.get("index")


def _without_shared_events(log: Subscriber) -> Subscriber:
    """Return a subscriber that leaves out what the first child of a fleet logs for all of them."""
    return lambda event: None if isinstance(event, _LOGGED_ONCE) else log(event)


def _warn_of_unused_queues(app: Umbel, queues: Sequence[str], logs: Logs) -> None:
    """Write a warning for queues that no task uses, which are often misspelled.

    Jobs can be sent to them all the same. In a fleet, only the first child writes it.
    """
    known = app.registry.queues()
    for queue in queues:
        if queue not in known:
            event = (
                f"no task uses the queue {queue}; the queues of the tasks are {', '.join(known)}"
            )
            logs.write({"level": "warning", "event": event})


def _warn_of_unused_tables(app: Umbel, logs: Logs) -> None:
    """Write a warning for tables of the configuration file that concern no task of this worker."""
    for table in app.task_tables.unused([task.name for task in app.registry]):
        event = f"{table} concerns no task of this worker"
        logs.write({"level": "warning", "event": event})


def _index_options(index: int | None, of: int | None, replica: int | None) -> dict[str, int | None]:
    """Return the index that a worker requires, and the one that it prefers if it requires none."""
    if of is None:
        return {"index": index}
    offset, ordinal = index or 0, replica_ordinal(socket.gethostname()) or 0
    return {
        "index": None if replica is None else replica * of + offset,
        "ordinal": ordinal * of + offset,
    }


def _order(text: str | None) -> Any:
    """Return the name of a strategy, or the function at ``module:function``."""
    module, _, name = (text or "").partition(":")
    if not name:
        return text
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"--order {text}: {error}; give MODULE:FUNCTION") from None


def _weights(text: str | None) -> dict[str, float] | None:
    if not text:
        return None
    parts = [part.partition("=") for part in text.split(",")]
    try:
        return {name.strip(): float(weight) for name, _, weight in parts}
    except ValueError:
        raise ConfigurationError(
            f"--weights {text}: give numbers, as in mail=5,reports=1"
        ) from None


def _worker_name(name: str | None, index: int | None) -> str:
    """Return ``name``, or ``name.index`` for one of several; the default is the host's name."""
    name = name or default_name()
    return name if index is None else f"{name}.{index}"


async def _serve(
    app: Umbel,
    options: WorkerOptions,
    logs: Logs,
    given: Mapping[str, Any],
    *,
    in_fleet: bool,
) -> Worker:
    """Run the worker to its end and return it."""
    worker = app.worker(options)
    stop_on_signals(worker, in_fleet=in_fleet)
    async with AsyncExitStack() as stack:
        if given.get("probe") is not None:
            await stack.enter_async_context(_serve_probe(app, worker, logs, given["probe"]))
        if given.get("listen"):
            from umbel.processes.link_process import serving

            await stack.enter_async_context(serving(app.publisher(given["listen"])))
        await worker.run()
    return worker


@asynccontextmanager
async def _serve_probe(
    app: Umbel, worker: Worker, logs: Logs, address: tuple[str, int]
) -> AsyncIterator[None]:
    from umbel.observability.metrics import Metrics
    from umbel.observability.probe import Probe
    from umbel.tasks.inbox import InboxTasks

    commands = InboxTasks().all()
    metrics = Metrics(lambda task: app.registry.get(task) is not None or task in commands)
    metrics.add_gauge(lambda: [("umbel_log_lines_lost_total", (), logs.lost)])
    app.telemetry.subscribe(metrics.count)
    probe = Probe(worker, metrics, SystemClock())
    port = await probe.start(*address)
    url = f"http://{address[0]}:{port}"
    logs.write({"level": "info", "event": "serving the probe", "address": url})
    try:
        yield
    finally:
        await probe.stop()


def _exit_despite_threads(logs: Logs) -> None:
    """End the process after a delay, even if a task has left a thread running.

    All jobs are settled by now.
    """

    def exit_now() -> None:
        logs.flush(1.0)
        os._exit(0)

    timer = threading.Timer(_EXIT_DELAY_SECONDS, exit_now)
    timer.daemon = True
    timer.start()
    sys.stdout.flush()
