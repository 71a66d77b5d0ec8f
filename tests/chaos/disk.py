"""A small disk that can be full for a while."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol


class Disk(Protocol):
    """A folder on a disk that can be filled on request."""

    folder: Path
    what: str
    """How it is done, for the report."""

    def fill(self, pids: Iterable[int]) -> None:
        """Make every further write fail, at least for these processes."""

    def free(self, pids: Iterable[int]) -> None:
        """Make writes possible again."""

    def remove(self) -> None:
        """Remove the disk with its content."""


class SmallDisk:
    """A separate file system in memory, of a few megabytes. Needs root."""

    what = "a small tmpfs, filled by a file of ballast"

    def __init__(self, megabytes: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="umbel-disk-"))
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0755", "tmpfs"]
        try:
            subprocess.run([*mount, str(self.folder)], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.folder.rmdir()
            raise PermissionError("no small file system can be mounted here") from error
        self._ballast = self.folder / "ballast"

    def fill(self, pids: Iterable[int]) -> None:
        room = shutil.disk_usage(self.folder).free
        with self._ballast.open("wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, max(room, 1))
            except OSError:
                while _grew(file.fileno()):
                    pass

    def free(self, pids: Iterable[int]) -> None:
        self._ballast.unlink(missing_ok=True)

    def remove(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)
        self.folder.rmdir()


class Quota:
    """Works without root: a resource limit stops the processes from extending any file."""

    what = "RLIMIT_FSIZE of the workers (no small file system can be mounted here)"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="umbel-disk-"))

    def fill(self, pids: Iterable[int]) -> None:
        largest = max((f.stat().st_size for f in self.folder.rglob("*") if f.is_file()), default=0)
        self._limit(pids, largest)

    def free(self, pids: Iterable[int]) -> None:
        self._limit(pids, resource.RLIM_INFINITY)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _limit(self, pids: Iterable[int], size: int) -> None:
        for pid in pids:
            try:
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
            except ProcessLookupError:
                continue  # it has just been killed


def _grew(descriptor: int) -> bool:
    try:
        return os.write(descriptor, b"\0" * 4096) > 0
    except OSError:
        return False
