"""Signals that stop or reload a worker."""

from __future__ import annotations

import asyncio
import signal

from umbel.processes.signals import is_interactive
from umbel.worker import Worker

_DELIVERY_SECONDS = 0.01
"""Long enough for the event loop to handle the signals that it has received already."""


def stop_on_signals(worker: Worker, *, in_fleet: bool = False) -> None:
    """Stop in phases at the first SIGTERM or SIGINT, and without grace at the second.

    SIGHUP stops the worker in phases and then restarts it. A terminal that is closed sends SIGHUP,
    too; a process with a terminal therefore only stops.

    In a fleet the parent sends SIGTERM first and SIGINT second. A supervisor may signal the parent
    and its children alike, so a second SIGTERM has no effect there.
    """
    loop = asyncio.get_running_loop()

    def on_term() -> None:
        if not (in_fleet and worker.stopping() and not worker.reloading):
            worker.stop()

    def on_int() -> None:
        if in_fleet:
            worker.stop()
        worker.stop()

    loop.add_signal_handler(signal.SIGHUP, on_term if is_interactive() else worker.reload)
    loop.add_signal_handler(signal.SIGTERM, on_term)
    loop.add_signal_handler(signal.SIGINT, on_int)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def collect_late_stop_signals(runner: asyncio.Runner) -> list[int]:
    """Return a list to which stop signals are added from now on, while the event loop closes.

    A worker that reloads must not miss one, because the sender does not repeat it. The loop handles
    the signals that came before. A signal that comes after the loop is closed ends the process, as
    it does while a worker starts. SIGHUP is blocked until the restarted worker unblocks it.
    """
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: received.append(number))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    runner.run(asyncio.sleep(_DELIVERY_SECONDS))
    return received
