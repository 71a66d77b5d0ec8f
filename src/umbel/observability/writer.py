"""Writes log lines without ever blocking the code that logs.

A reader that stalls (a full pipe, a hung log driver) would block a plain ``print``, and with it the
event loop or the heartbeat. A separate thread therefore writes. Lines that it cannot write in time
are counted and reported.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TextIO

from umbel.terminal import join_texts, make_visible, write

_MAX_WAITING_LINES = 10_000
_MAX_BATCH_LINES = 500
_LOSS_TEXT = "{} log lines were lost because they were not read in time"


class Writer:
    """Writes lines to a stream, in order, in a thread that starts with the first line.

    ``put`` takes no Python lock: an exception may be raised in a task's thread at any point, and a
    lock that it did not release would stop all logs.
    """

    def __init__(
        self,
        stream: TextIO,
        fallback: TextIO | None = None,
        *,
        render_loss: Callable[[int], str] = _LOSS_TEXT.format,
        max_waiting: int = _MAX_WAITING_LINES,
    ) -> None:
        self.lost = 0
        """Lines that did not reach the stream."""
        self._stream = stream
        self._fallback = fallback
        self._render_loss = render_loss
        self._max_waiting = max_waiting
        self._dropped = 0
        self._closed = False
        self._pid = os.getpid()
        self._queue: SimpleQueue[str | threading.Event] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, line: str) -> None:
        """Queue a line to be written. Never raises and never waits."""
        if self._closed or self._pid != os.getpid():
            self._write([line])  # a forked child has no writer thread
            return
        if self._queue.qsize() >= self._max_waiting:
            self.lost += 1
            self._dropped += 1
            return
        self._queue.put(line)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="umbel-logs", daemon=True)
            self._thread.start()

    def flush(self, timeout: float) -> bool:
        """Wait until all queued lines are written; return False if that took too long."""
        if self._thread is None or self._pid != os.getpid():
            return True
        reached = threading.Event()
        self._queue.put(reached)
        return reached.wait(timeout)

    def close(self, timeout: float = 2.0) -> None:
        """Write the queued lines. Lines that are put later are written immediately."""
        self.flush(timeout)
        self._closed = True

    def _serve(self) -> None:
        while True:
            batch = [self._queue.get()]
            try:
                while len(batch) < _MAX_BATCH_LINES:
                    batch.append(self._queue.get_nowait())
            except Empty:
                pass
            self._write([line for line in batch if isinstance(line, str)])
            self._report_dropped()
            for reached in batch:
                if isinstance(reached, threading.Event):
                    reached.set()

    def _report_dropped(self) -> None:
        dropped, self._dropped = self._dropped, 0
        if dropped:
            self._write([self._render_loss(dropped)])

    def _write(self, lines: list[str]) -> None:
        if not lines:
            return
        try:
            write(self._stream, join_texts([*lines], "\n"))
            self._stream.flush()
        except Exception as error:  # noqa: BLE001 - closed, full, broken, not encodable
            self.lost += len(lines)
            self.report_failure(lines, error)

    def report_failure(self, lines: list[str], error: Exception) -> None:
        """Report on stderr lines that could not be written."""
        try:
            fallback = self._fallback or sys.stderr
            for line in lines:
                text = line.encode("ascii", "backslashreplace").decode()
                report = f"umbel: a log line could not be written ({error!r}): {text}"
                write(fallback, make_visible(report, lines=False))
            fallback.flush()
        except Exception:  # noqa: BLE001 - the lines are counted as lost
            pass
