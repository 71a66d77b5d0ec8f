"""Gets lines out of the process without ever holding up whoever wrote them.

A reader that stalls (a full pipe, a hung log driver) would block a plain ``print``, and with it
the event loop or the heart. So a thread of its own writes, and what it cannot write in time is
counted and told, never lost in silence.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TextIO

from umbel.terminal import joined, visible, write

_WAITING = 10_000
_BATCH = 500


class Writer:
    """Writes lines to a stream, in order, from a thread that starts with the first line.

    ``put`` takes no Python lock: a task's thread may be struck by an exception from outside at
    any point, and a lock it left behind would silence everybody.
    """

    def __init__(
        self,
        stream: TextIO,
        spare: TextIO | None = None,
        *,
        dropped: Callable[[int], str] = "{} log lines were lost: nobody read them in time".format,
        waiting: int = _WAITING,
    ) -> None:
        self.lost = 0
        """Lines that did not reach the stream."""
        self._stream = stream
        self._spare = spare
        self._dropped_text = dropped
        self._waiting = waiting
        self._dropped = 0
        self._closed = False
        self._pid = os.getpid()
        self._queue: SimpleQueue[str | threading.Event] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, line: str) -> None:
        """Take a line; it is written soon. Never raises, never waits."""
        if self._closed or self._pid != os.getpid():
            self._write([line])  # a forked child has no thread; it writes for itself
            return
        if self._queue.qsize() >= self._waiting:
            self.lost += 1
            self._dropped += 1
            return
        self._queue.put(line)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="umbel-logs", daemon=True)
            self._thread.start()

    def flush(self, timeout: float) -> bool:
        """Wait until everything put so far is written. False when that took too long."""
        if self._thread is None or self._pid != os.getpid():
            return True
        reached = threading.Event()
        self._queue.put(reached)
        return reached.wait(timeout)

    def close(self, timeout: float = 2.0) -> None:
        """Write what is left; lines put later are written at once."""
        self.flush(timeout)
        self._closed = True

    def _serve(self) -> None:
        while True:
            batch = [self._queue.get()]
            try:
                while len(batch) < _BATCH:
                    batch.append(self._queue.get_nowait())
            except Empty:
                pass
            self._write([line for line in batch if isinstance(line, str)])
            self._tell_dropped()
            for reached in batch:
                if isinstance(reached, threading.Event):
                    reached.set()

    def _tell_dropped(self) -> None:
        dropped, self._dropped = self._dropped, 0
        if dropped:
            self._write([self._dropped_text(dropped)])

    def _write(self, lines: list[str]) -> None:
        if not lines:
            return
        try:
            write(self._stream, joined([*lines], "\n"))
            self._stream.flush()
        except Exception as error:  # noqa: BLE001 - closed, full, broken, not encodable
            self.lost += len(lines)
            self.complain(lines, error)

    def complain(self, lines: list[str], error: Exception) -> None:
        """The last resort: say on stderr what could not be said where it belongs."""
        try:
            spare = self._spare or sys.stderr
            for line in lines:
                text = line.encode("ascii", "backslashreplace").decode()
                told = f"umbel: a log line could not be written ({error!r}): {text}"
                write(spare, visible(told, lines=False))
            spare.flush()
        except Exception:  # noqa: BLE001 - there is nobody left to tell; it is counted
            pass
