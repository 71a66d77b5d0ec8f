"""Wake-ups between processes: every commit to a SQLite file in WAL mode writes to its log.

On Linux the kernel tells of that through inotify, so an idle process costs nothing and wakes
within a fraction of a millisecond. A write to the log comes a moment before its commit can be
seen, so our own writers touch the log once more when they are done: that is the hint. A commit
by others (the caller's own transaction, the sqlite3 shell) is looked for a few milliseconds
after its write. Where there is no inotify the log's time and size are looked at now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path

_IN_MODIFY = 0x2
_IN_ATTRIB = 0x4
_IN_IGNORED = 0x8000
_HEADER = struct.Struct("iIII")
_LOOK_EVERY = 0.02
_LOOK_AFTER_WRITE = (0.005, 0.05, 0.25, 1.0, 3.0)


def touch(log: str) -> None:
    """Tell every watcher that a commit is complete."""
    with contextlib.suppress(OSError):
        os.utime(log)


class LogWatch:
    """Calls back when something was committed, only while somebody listens."""

    def __init__(self, path: str, on_change: Callable[[], None]) -> None:
        self._path = path
        self._on_change = on_change
        self._listeners = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seen: tuple[int, int] | None = None
        self._owing = False
        self._inotify = _open_inotify(path)

    def attach(self) -> None:
        """Somebody waits now."""
        self._listeners += 1
        if self._listeners == 1:
            self._loop = asyncio.get_running_loop()
            if self._inotify is not None:
                self._loop.add_reader(self._inotify, self._drain)
                if self._owing:  # a write was heard of whose commit nobody has looked for yet
                    self._look_soon(0)
            else:
                self._look()

    def detach(self) -> None:
        """One fewer waits."""
        self._listeners -= 1
        if self._listeners == 0 and self._loop is not None:
            if self._inotify is not None:
                self._loop.remove_reader(self._inotify)
            self._owing = self._timer is not None
            self._wait_no_more()

    def close(self) -> None:
        """Give the watch back to the kernel."""
        if self._inotify is not None:
            os.close(self._inotify)
            self._inotify = None

    def renew(self) -> None:
        """Watch the log that is there now: the one before may have been removed."""
        if self._inotify is not None:
            _add_watch(self._inotify, self._path)

    def _drain(self) -> None:
        assert self._inotify is not None
        try:
            happened = _masks(os.read(self._inotify, 65536))
        except BlockingIOError:
            return
        if happened & (_IN_ATTRIB | _IN_IGNORED):  # ignored: the log was removed, look and renew
            self._on_change()
        if happened & _IN_MODIFY:
            # Also when a touch came with it: the touch may be of an earlier commit than the write.
            self._wait_no_more()
            self._look_soon(0)

    def _look_soon(self, step: int) -> None:
        """A write without our touch: its commit becomes visible in a moment."""
        assert self._loop is not None
        if step or self._timer is None:
            self._timer = self._loop.call_later(_LOOK_AFTER_WRITE[step], self._look_after, step)

    def _look_after(self, step: int) -> None:
        self._timer = None
        self._on_change()
        if step + 1 < len(_LOOK_AFTER_WRITE):
            self._look_soon(step + 1)

    def _wait_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        assert self._loop is not None
        with contextlib.suppress(OSError):
            stat = Path(self._path).stat()
            now = (stat.st_mtime_ns, stat.st_size)
            if self._seen not in (None, now):
                self._on_change()
            self._seen = now
        self._timer = self._loop.call_later(_LOOK_EVERY, self._look)


def _masks(data: bytes) -> int:
    """All that happened, of a run of inotify events."""
    at = happened = 0
    while at + _HEADER.size <= len(data):
        _, mask, _, name_length = _HEADER.unpack_from(data, at)
        happened |= mask
        at += _HEADER.size + name_length
    return happened


def _open_inotify(path: str) -> int | None:
    """A descriptor that becomes readable when the file is written, or None where there is none."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, AttributeError):
        return None
    if descriptor < 0:
        return None
    if not _add_watch(descriptor, path):
        os.close(descriptor)
        return None
    return descriptor


def _add_watch(descriptor: int, path: str) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    mask = _IN_MODIFY | _IN_ATTRIB
    added: int = libc.inotify_add_watch(descriptor, os.fsencode(path), mask)
    return added >= 0
