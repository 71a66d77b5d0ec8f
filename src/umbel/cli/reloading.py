"""Noticing that code has changed, and starting over."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

_LOOK = 0.3
_ELSEWHERE = {".venv", "venv", "site-packages", "node_modules"}


class Watch:
    """Watches the imported modules below the current folder, and every module beside them."""

    def __init__(self) -> None:
        self._folder = Path.cwd()
        self._seen = self._times()
        self.changes: list[str] = []
        """Which files have changed, once they have."""

    async def changed(self) -> None:
        """Return when a file has changed and been left alone for a moment."""
        while not self._look():  # noqa: ASYNC110 - files send no events
            await asyncio.sleep(_LOOK)
        await asyncio.sleep(_LOOK)

    def wait(self) -> None:
        """The same for a process that can do nothing else."""
        while not self._look():
            time.sleep(_LOOK)
        time.sleep(_LOOK)

    def _look(self) -> bool:
        times = self._times()
        # A module seen for the first time was imported just now; that is no change of it.
        known = {path for path in self._seen if times.get(path) != self._seen[path]}
        self.changes = sorted(str(path.relative_to(self._folder)) for path in known)
        self._seen |= {path: at for path, at in times.items() if path not in self._seen}
        return bool(known)

    def _times(self) -> dict[Path, int]:
        found: dict[Path, int] = {}
        for path in {*self._imported(), *self._folder.glob("*.py")}:
            try:
                found[path] = path.stat().st_mtime_ns
            except OSError:
                continue
        return found

    def _imported(self) -> list[Path]:
        files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        paths = [Path(file) for file in files if isinstance(file, str) and file.endswith(".py")]
        return [path for path in paths if self._is_ours(path)]

    def _is_ours(self, path: Path) -> bool:
        return path.is_relative_to(self._folder) and not _ELSEWHERE.intersection(path.parts)


def restart(changes: list[str]) -> NoReturn:
    """Become a fresh process of the same command: nothing of the old code is left."""
    os.environ["UMBEL_DEV_CHANGED"] = ", ".join(changes) or "something"
    start_over()


def start_over() -> NoReturn:
    """Run this command again in this very process, with the code as it is now."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
