"""Keeps the worker running when the code of a task asks the process to exit.

The coroutine executor catches everything that a task raises. But a task may start an asyncio task
of its own, or leave a callback in the event loop. SystemExit and KeyboardInterrupt raised there
leave the event loop, and the process would end with all other jobs in it. The loop itself is
unchanged: it can be run again, with all its tasks and callbacks.
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
    """Run ``main`` to its end in the loop, even if other code there asks for an exit.

    Raises what ``main`` raises, and KeyboardInterrupt if no handler of SIGINT is installed yet.
    """
    task = loop.create_task(main)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            # Before signal handlers are installed, it is the user who pressed Ctrl-C.
            is_unhandled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            if task.done() or (isinstance(error, KeyboardInterrupt) and is_unhandled):
                raise
            stack = "".join(traceback.format_exception(error))
            telemetry.emit(events.ExitIgnored(error=repr(error), stack=stack))
