"""Code of a task that asks the process to end must not end the worker.

A coroutine of ours catches whatever its task raises. But a task may start an asyncio task of its
own, or leave a callback with the event loop. asyncio lets SystemExit and KeyboardInterrupt from
there out of the loop, and the process would end with all other jobs in it. The loop itself stays
as it was: it can be run again, and what was due in it is still due.
"""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import Coroutine
from typing import Any, TypeVar

from umbel.telemetry import Telemetry, events

T = TypeVar("T")


def run_despite_exits(
    loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, T], telemetry: Telemetry
) -> T:
    """Run ``main`` to its end in the loop, also when something else there asks for an exit.

    Raises what ``main`` raises, and KeyboardInterrupt for a signal that nothing handles yet.
    """
    task = loop.create_task(main)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            # Before there are handlers for signals, it is the user at the keyboard.
            unhandled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            if task.done() or (isinstance(error, KeyboardInterrupt) and unhandled):
                raise
            stack = "".join(traceback.format_exception(error))
            telemetry.emit(events.ExitRefused(error=repr(error), stack=stack))
