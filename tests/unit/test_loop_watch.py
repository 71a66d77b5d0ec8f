"""The watch of a worker's event loop, with a loop that the test blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from umbel.clock import Clock, SystemClock
from umbel.telemetry import Telemetry, events
from umbel.worker.loop_watch import LoopWatch


class LateClock(SystemClock):
    """The clock of a process that was stopped, or starved, during each wait."""

    def __init__(self, enough: int) -> None:
        self._reads = count()
        self._enough = enough
        self.was_read_often = threading.Event()

    def monotonic(self) -> float:
        read = next(self._reads)
        if read == self._enough:
            self.was_read_often.set()
        return read * 10.0


@contextmanager
def watched(clock: Clock, heard: list[events.Event]) -> Iterator[LoopWatch]:
    """A watch of the running loop, in a thread of its own."""
    watch = LoopWatch(lambda: [("tasks.block", "a job")], clock, Telemetry(heard.append))
    loop = asyncio.new_event_loop()
    task = loop.create_task(watch.run())
    task.add_done_callback(lambda _: loop.stop())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield watch
    loop.call_soon_threadsafe(task.cancel)
    thread.join()
    loop.close()


def test_a_block_is_reported_with_its_task_and_place() -> None:
    heard: list[events.Event] = []

    async def main() -> None:
        with watched(SystemClock(), heard) as watch:
            block_until(lambda: bool(heard))
            assert watch.is_blocked
            while len(heard) < 2:
                await asyncio.sleep(0)
            assert not watch.is_blocked

    asyncio.run(main())
    blocked, ended = heard
    assert isinstance(blocked, events.LoopBlocked)
    assert (blocked.tasks, blocked.jobs) == (("tasks.block",), ("a job",))
    assert "block_until" in blocked.stack
    assert isinstance(ended, events.LoopUnblocked)
    assert ended.seconds >= blocked.seconds


def test_a_process_that_was_stopped_does_not_report_a_block() -> None:
    heard: list[events.Event] = []
    clock = LateClock(enough=6)

    async def main() -> None:
        with watched(clock, heard) as watch:
            clock.was_read_often.wait(60)
            assert not watch.is_blocked

    asyncio.run(main())
    assert clock.was_read_often.is_set()
    assert heard == []


def block_until(condition: Callable[[], bool]) -> None:
    """Block the calling thread until the condition holds."""
    tick = threading.Event()
    while not condition():
        tick.wait(0.01)
