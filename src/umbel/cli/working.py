"""One worker process from start to exit code."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, cast

from umbel.app import Umbel
from umbel.cli.frame import Frame
from umbel.clock import SystemClock
from umbel.observability.logs import Logs, Style, configure_logs
from umbel.telemetry.events import Level
from umbel.worker import Worker, WorkerOptions
from umbel.worker.options import default_name

_PYTHONS_OWN = (700, 10, 10)
_LINGER = 5.0
"""Seconds that threads left behind by tasks may keep a stopped process from ending."""


def _spare_the_collector() -> None:
    """What is loaded by now stays: looking through it for garbage took a tenth of a busy worker."""
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == _PYTHONS_OWN:  # else the application has chosen
        gc.set_threshold(10_000, 20, 20)


def work(frame: Frame, style: str, level: str, chosen: dict[str, Any], *, fleet: str = "") -> int:
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
        with asyncio.Runner(loop_factory=_loop_factory(options)) as runner:
            runner.run(_serve(app, options, logs, chosen.get("probe"), in_fleet=bool(fleet)))
            _end_soon(logs)
        return 0
    finally:
        logs.close()


def _options(app: Umbel, chosen: dict[str, Any]) -> WorkerOptions:
    queues = [queue.strip() for queue in (chosen.get("queues") or "").split(",")]
    given: dict[str, Any] = {
        "queues": tuple(filter(None, queues)) or tuple(app.registry.queues()),
        "name": worker_name(chosen.get("name"), chosen.get("index")),
        "uvloop": not chosen.get("no_uvloop"),
    }
    given |= {name: chosen.get(name) for name in ("io", "cpu", "lease", "grace")}
    return WorkerOptions(**{name: value for name, value in given.items() if value is not None})


def worker_name(name: str | None, index: int | None) -> str:
    """``name``, or ``name.index`` for one of several; the host's name when none is given."""
    name = name or default_name()
    return name if index is None else f"{name}.{index}"


def _loop_factory(options: WorkerOptions) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if options.uvloop:
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
    probe: tuple[str, int] | None,
    *,
    in_fleet: bool,
) -> None:
    worker = app.worker(options)
    stop_on_signals(worker, in_fleet=in_fleet)
    if probe is None:
        await worker.run()
        return
    from umbel.observability.metrics import Metrics
    from umbel.observability.probe import Probe

    metrics = Metrics()
    metrics.watch(lambda: [("umbel_log_lines_lost_total", (), logs.lost)])
    app.telemetry.subscribe(metrics.hear)
    served = Probe(worker, metrics, SystemClock())
    port = await served.start(*probe)
    address = f"http://{probe[0]}:{port}"
    logs.write({"level": "info", "event": "probe serves", "address": address})
    try:
        await worker.run()
    finally:
        await served.stop()


def stop_on_signals(worker: Worker, *, in_fleet: bool = False) -> None:
    """Stop in phases at the first SIGTERM or SIGINT, without grace at the second.

    In a fleet the parent says SIGTERM for the first and SIGINT for the second. A supervisor may
    signal parent and children alike; so here SIGTERM twice is once.
    """
    loop = asyncio.get_running_loop()

    def on_term() -> None:
        if not (in_fleet and worker.stopping()):
            worker.stop()

    def on_int() -> None:
        if in_fleet:
            worker.stop()
        worker.stop()

    loop.add_signal_handler(signal.SIGTERM, on_term)
    loop.add_signal_handler(signal.SIGINT, on_int)


def _end_soon(logs: Logs) -> None:
    """Everything is settled: a thread that a task left behind must not keep the process."""

    def end() -> None:
        logs.flush(1.0)
        os._exit(0)

    timer = threading.Timer(_LINGER, end)
    timer.daemon = True
    timer.start()
    sys.stdout.flush()
