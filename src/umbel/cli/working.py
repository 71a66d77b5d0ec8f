"""One worker process from start to exit code."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

from umbel.app import Umbel
from umbel.cli.command_context import CommandContext
from umbel.cli.reloading import start_over
from umbel.clock import SystemClock
from umbel.errors import ConfigurationError
from umbel.observability.logs import Logs, Style, configure_logs
from umbel.telemetry.events import Level
from umbel.worker import Worker, WorkerOptions
from umbel.worker.exits import run_despite_exits
from umbel.worker.options import default_name, ordinal_of

_PYTHONS_OWN = (700, 10, 10)
_MOMENT = 0.01
_LINGER = 5.0
"""Seconds that threads left behind by tasks may keep a stopped process from ending."""


def _spare_the_collector() -> None:
    """What is loaded by now stays: looking through it for garbage took a tenth of a busy worker."""
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == _PYTHONS_OWN:  # else the application has chosen
        gc.set_threshold(10_000, 20, 20)


def work(
    frame: CommandContext, style: str, level: str, chosen: dict[str, Any], *, fleet: str = ""
) -> int:
    """Run a worker until it is told to stop. Raises what starting it raises."""
    if fleet:
        from umbel.cli.fleet import follow_parent

        follow_parent(int(fleet))
    # Before the application is imported: what it then configures itself has the last word.
    logs = configure_logs(cast(Style, style), level)
    try:
        app = frame.app
        app.telemetry.subscribe(logs.subscriber(level), cast(Level, level))
        options = _options(app, chosen)
        _spare_the_collector()
        with asyncio.Runner(loop_factory=loop_factory(options.uvloop)) as runner:
            serving = _serve(app, options, logs, chosen, in_fleet=bool(fleet))
            worker = run_despite_exits(runner.get_loop(), serving, app.telemetry)
            told = _hear_to_the_end(runner)
            if not worker.reloading:
                _end_soon(logs)
    finally:
        logs.close()
    if worker.reloading and not told:
        if fleet:
            os.environ["UMBEL_FLEET"] = fleet
        start_over()
    return 0


def _options(app: Umbel, chosen: dict[str, Any]) -> WorkerOptions:
    given: dict[str, Any] = {
        "queues": _queues(app, chosen.get("queues")),
        "name": worker_name(chosen.get("name"), chosen.get("index")),
        **_seat(chosen.get("index"), chosen.get("of"), chosen.get("replica")),
        "uvloop": not chosen.get("no_uvloop"),
        "inbox": not chosen.get("no_inbox"),
        "signing": not chosen.get("no_signing"),
    }
    given |= {name: chosen.get(name) for name in ("io", "cpu", "lease", "grace")}
    given["order"] = _order(chosen.get("order"))
    given["weights"] = _weights(chosen.get("weights"))
    return WorkerOptions(**{name: value for name, value in given.items() if value is not None})


def _queues(app: Umbel, text: str | None) -> tuple[str, ...]:
    """The queues named in ``a,b``; every queue of the tasks when none are asked for."""
    if text is None:
        return tuple(app.registry.queues())
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    if not names:
        raise ConfigurationError(
            f"--queues {text}: is empty; give names, as in mail,reports, or leave it out"
            " to serve every queue of the tasks"
        )
    return names


def _seat(index: int | None, of: int | None, replica: int | None) -> dict[str, int | None]:
    """The index that a worker insists on, or would like; it may be one of several processes."""
    if of is None:
        return {"index": index}
    place, ordinal = index or 0, ordinal_of(socket.gethostname()) or 0
    return {
        "index": None if replica is None else replica * of + place,
        "ordinal": ordinal * of + place,
    }


def _order(text: str | None) -> Any:
    """A strategy's name, or the function at ``module:function``."""
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


def worker_name(name: str | None, index: int | None) -> str:
    """``name``, or ``name.index`` for one of several; the host's name when none is given."""
    name = name or default_name()
    return name if index is None else f"{name}.{index}"


def loop_factory(wanted: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, if it is wanted and there; None for asyncio's own."""
    if wanted:
        try:
            import uvloop
        except ImportError:
            return None
        return uvloop.new_event_loop
    return None


async def _serve(
    app: Umbel,
    options: WorkerOptions,
    logs: Logs,
    chosen: dict[str, Any],
    *,
    in_fleet: bool,
) -> Worker:
    """The worker, when it has run."""
    worker = app.worker(options)
    stop_on_signals(worker, in_fleet=in_fleet)
    async with AsyncExitStack() as stack:
        if chosen.get("probe") is not None:
            await stack.enter_async_context(_probed(app, worker, logs, chosen["probe"]))
        if chosen.get("listen"):
            from umbel.cli.stationing import beside

            await stack.enter_async_context(beside(app.publisher(chosen["listen"])))
        await worker.run()
    return worker


@asynccontextmanager
async def _probed(
    app: Umbel, worker: Worker, logs: Logs, where: tuple[str, int]
) -> AsyncIterator[None]:
    from umbel.observability.metrics import Metrics
    from umbel.observability.probe import Probe
    from umbel.tasks.inbox import InboxTasks

    commands = InboxTasks().all()
    metrics = Metrics(lambda task: app.registry.get(task) is not None or task in commands)
    metrics.watch(lambda: [("umbel_log_lines_lost_total", (), logs.lost)])
    app.telemetry.subscribe(metrics.hear)
    served = Probe(worker, metrics, SystemClock())
    port = await served.start(*where)
    address = f"http://{where[0]}:{port}"
    logs.write({"level": "info", "event": "probe serves", "address": address})
    try:
        yield
    finally:
        await served.stop()


def stop_on_signals(worker: Worker, *, in_fleet: bool = False) -> None:
    """Stop in phases at the first SIGTERM or SIGINT, without grace at the second.

    SIGHUP: stop in phases and begin again; but a terminal that is closed says the same, and then
    nobody is there any more.

    In a fleet the parent says SIGTERM for the first and SIGINT for the second. A supervisor may
    signal parent and children alike; so here SIGTERM twice is once.
    """
    loop = asyncio.get_running_loop()

    def on_term() -> None:
        if not (in_fleet and worker.stopping() and not worker.reloading):
            worker.stop()

    def on_int() -> None:
        if in_fleet:
            worker.stop()
        worker.stop()

    loop.add_signal_handler(signal.SIGHUP, on_term if has_terminal() else worker.reload)
    loop.add_signal_handler(signal.SIGTERM, on_term)
    loop.add_signal_handler(signal.SIGINT, on_int)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def _hear_to_the_end(runner: asyncio.Runner) -> list[int]:
    """Signals to stop that come from now on until the loop is closed; the list goes on growing.

    Whoever begins again must not miss one: nobody would say it twice. What came before, the loop
    hears now; what comes after ends the process, as it does while a worker starts. One more SIGHUP
    waits until that has happened.
    """
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda heard, _: told.append(heard))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    runner.run(asyncio.sleep(_MOMENT))
    return told


def has_terminal() -> bool:
    """Whether somebody sits before this process, rather than a supervisor."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def _end_soon(logs: Logs) -> None:
    """Everything is settled: a thread that a task left behind must not keep the process."""

    def end() -> None:
        logs.flush(1.0)
        os._exit(0)

    timer = threading.Timer(_LINGER, end)
    timer.daemon = True
    timer.start()
    sys.stdout.flush()
