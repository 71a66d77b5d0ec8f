"""Wake-ups between processes: every commit to a SQLite file in WAL mode writes to its log.

On Linux, inotify reports these writes, so an idle process costs nothing and wakes up within a
fraction of a millisecond. A commit becomes visible a moment after its write to the log. So Umbel's
own writers touch the log once more after the commit. After a write without a touch (a caller's own
transaction, the sqlite3 shell), the watch checks several times within seconds. Where there is no
inotify, the watch polls the time and size of the log.
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
_POLL_SECONDS = 0.02
_CHECK_DELAYS_SECONDS = (0.005, 0.05, 0.25, 1.0, 3.0)


def touch(log: str) -> None:
    """Notify every watch that a commit is complete."""
    with contextlib.suppress(OSError):
        os.utime(log)


class LogWatch:
    """Calls ``on_change`` after commits, while there is at least one listener."""

    def __init__(self, path: str, on_change: Callable[[], None]) -> None:
        self._path = path
        self._on_change = on_change
        self._listeners = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seen: tuple[int, int] | None = None
        self._has_unchecked_write = False
        self._inotify = _open_inotify(path)

    def attach(self) -> None:
        """Add a listener."""
        self._listeners += 1
        if self._listeners == 1:
            self._loop = asyncio.get_running_loop()
            if self._inotify is not None:
                self._loop.add_reader(self._inotify, self._drain)
                if (
                    self._has_unchecked_write
                ):  # a write was reported, and its commit not checked yet
                    self._schedule_check(0)
            else:
                self._poll()

    def detach(self) -> None:
        """Remove a listener."""
        self._listeners -= 1
        if self._listeners == 0 and self._loop is not None:
            if self._inotify is not None:
                self._loop.remove_reader(self._inotify)
            self._has_unchecked_write = self._timer is not None
            self._cancel_timer()

    def close(self) -> None:
        """Close the inotify descriptor."""
        if self._inotify is not None:
            os.close(self._inotify)
            self._inotify = None

    def renew(self) -> None:
        """Watch the log that exists now: the previous one may have been removed."""
        if self._inotify is not None:
            _add_watch(self._inotify, self._path)

    def _drain(self) -> None:
        assert self._inotify is not None
        try:
            happened = _combined_mask(os.read(self._inotify, 65536))
        except BlockingIOError:
            return
        if happened & (_IN_ATTRIB | _IN_IGNORED):  # ignored: the log was removed
            self._on_change()
        if happened & _IN_MODIFY:
            # Also after a touch: the touch may belong to an earlier commit than the write.
            self._cancel_timer()
            self._schedule_check(0)

    def _schedule_check(self, step: int) -> None:
        """Check after a delay whether the commit of a write is visible."""
        assert self._loop is not None
        if step or self._timer is None:
            self._timer = self._loop.call_later(
                _CHECK_DELAYS_SECONDS[step], self._check_again, step
            )

    def _check_again(self, step: int) -> None:
        self._timer = None
        self._on_change()
        if step + 1 < len(_CHECK_DELAYS_SECONDS):
            self._schedule_check(step + 1)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _poll(self) -> None:
        assert self._loop is not None
        with contextlib.suppress(OSError):
            stat = Path(self._path).stat()
            now = (stat.st_mtime_ns, stat.st_size)
            if self._seen not in (None, now):
                self._on_change()
            self._seen = now
        self._timer = self._loop.call_later(_POLL_SECONDS, self._poll)


def _combined_mask(data: bytes) -> int:
    """Return the masks of all inotify events in the data, combined."""
    at = happened = 0
    while at + _HEADER.size <= len(data):
        _, mask, _, name_length = _HEADER.unpack_from(data, at)
        happened |= mask
        at += _HEADER.size + name_length
    return happened


def _open_inotify(path: str) -> int | None:
    """Return a descriptor that becomes readable when the file is written; None without inotify."""
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
