"""Noticing that source files have changed, and restarting a process in place."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from umbel.configuration.file import DEFAULT_FILE

CHANGED_FILES = "UMBEL_DEV_CHANGED"
"""The environment variable that tells the restarted process which files have changed."""

_CHECK_INTERVAL_SECONDS = 0.3
_IGNORED_FOLDERS = {".venv", "venv", "site-packages", "node_modules"}


class SourceWatcher:
    """Watches the imported modules below the current folder, every module in that folder, and
    the configuration file there."""

    def __init__(self) -> None:
        self._folder = Path.cwd()
        self._known = self._modification_times()
        self.changed_files: list[str] = []
        """The files that changed, once some have."""

    async def wait_for_change(self) -> None:
        """Return when a file has changed and one more interval has passed."""
        while not self._find_changes():  # noqa: ASYNC110 - files send no events
            await asyncio.sleep(_CHECK_INTERVAL_SECONDS)
        await asyncio.sleep(_CHECK_INTERVAL_SECONDS)

    def block_until_change(self) -> None:
        """Do the same in a process without an event loop."""
        while not self._find_changes():
            time.sleep(_CHECK_INTERVAL_SECONDS)
        time.sleep(_CHECK_INTERVAL_SECONDS)

    def _find_changes(self) -> bool:
        times = self._modification_times()
        # A module that is seen for the first time has been imported just now, not changed.
        changed = {path for path in self._known if times.get(path) != self._known[path]}
        self.changed_files = sorted(str(path.relative_to(self._folder)) for path in changed)
        self._known |= {path: at for path, at in times.items() if path not in self._known}
        return bool(changed)

    def _modification_times(self) -> dict[Path, int]:
        found: dict[Path, int] = {}
        watched = *self._folder.glob("*.py"), self._folder / DEFAULT_FILE
        for path in {*self._imported_files(), *watched}:
            try:
                found[path] = path.stat().st_mtime_ns
            except OSError:
                continue
        return found

    def _imported_files(self) -> list[Path]:
        files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        paths = [Path(file) for file in files if isinstance(file, str) and file.endswith(".py")]
        return [path for path in paths if self._is_watched(path)]

    def _is_watched(self, path: Path) -> bool:
        return path.is_relative_to(self._folder) and not _IGNORED_FOLDERS.intersection(path.parts)


def restart_after_change(changed_files: list[str]) -> NoReturn:
    """Restart this process; the new one finds the changed files in its environment."""
    os.environ[CHANGED_FILES] = ", ".join(changed_files) or "a file"
    restart_process()


def restart_process() -> NoReturn:
    """Run this command again under the same process id, with the code as it is now."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
