"""Wake-ups between processes: every commit to a SQLite file in WAL mode grows its log.

On Linux the kernel tells of that through inotify, so an idle process costs nothing and wakes
within a fraction of a millisecond, whoever wrote: a publisher, a worker, the sqlite3 shell, or
the caller's own transaction. Elsewhere the file's size and time are looked at now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

_IN_MODIFY = 0x2
_IN_CLOEXEC = os.O_CLOEXEC
_IN_NONBLOCK = os.O_NONBLOCK
_LOOK_EVERY = 0.02


class LogWatch:
    """Calls back when the file changes, only while somebody listens."""

    def __init__(self, path: str, on_change: Callable[[], None]) -> None:
        self._path = path
        self._on_change = on_change
        self._listeners = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seen: tuple[int, int] | None = None
        self._inotify = _open_inotify(path)

    def attach(self) -> None:
        """Somebody waits now."""
        self._listeners += 1
        if self._listeners == 1:
            self._loop = asyncio.get_running_loop()
            if self._inotify is not None:
                self._loop.add_reader(self._inotify, self._drain)
            else:
                self._look()

    def detach(self) -> None:
        """Nobody may be waiting any more."""
        self._listeners -= 1
        if self._listeners == 0 and self._loop is not None:
            if self._inotify is not None:
                self._loop.remove_reader(self._inotify)
            elif self._timer is not None:
                self._timer.cancel()

    def close(self) -> None:
        """Give the watch back to the kernel."""
        if self._inotify is not None:
            os.close(self._inotify)
            self._inotify = None

    def _drain(self) -> None:
        assert self._inotify is not None
        with contextlib.suppress(BlockingIOError):
            os.read(self._inotify, 65536)
        self._on_change()

    def _look(self) -> None:
        assert self._loop is not None
        with contextlib.suppress(OSError):
            stat = Path(self._path).stat()
            now = (stat.st_mtime_ns, stat.st_size)
            if self._seen not in (None, now):
                self._on_change()
            self._seen = now
        self._timer = self._loop.call_later(_LOOK_EVERY, self._look)


def _open_inotify(path: str) -> int | None:
    """A descriptor that becomes readable when the file is written, or None where there is none."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor: int = libc.inotify_init1(_IN_CLOEXEC | _IN_NONBLOCK)
    except (OSError, AttributeError):
        return None
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(descriptor)
        return None
    return descriptor
