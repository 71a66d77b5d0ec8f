"""Files that only their owner reads: jobs carry whatever an application passes to its tasks."""

from __future__ import annotations

import os
from contextlib import suppress


def create_private(path: str) -> None:
    """Create an empty file with mode 600 if there is none, whatever the umask is.

    SQLite gives the write-ahead log and its index the mode of the database. A file that exists
    keeps its mode. Where no file can be created, opening it afterwards says why.
    """
    with suppress(OSError):
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        # A link to a file that does not exist yet is followed, as SQLite does.
        handle = os.open(os.path.realpath(path), flags, 0o600)
        try:
            os.fchmod(handle, 0o600)
        finally:
            os.close(handle)
