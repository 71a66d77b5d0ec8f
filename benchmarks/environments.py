"""A virtual environment for each peer, made on demand from its pinned requirements."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
VENVS = HERE / ".venvs"


def requirements(peer: str) -> Path:
    """The file that pins what a peer needs."""
    return HERE / "peers" / f"{peer}.txt"


def binaries(peer: str) -> Path:
    """The folder of a peer's commands."""
    return VENVS / peer / "bin"


def is_ready(peer: str) -> bool:
    """Whether its environment is there and made from what its file says now."""
    stamp = VENVS / peer / "made-from.txt"
    return stamp.is_file() and stamp.read_text() == requirements(peer).read_text()


def prepare(peer: str) -> None:
    """Make the environment. Raises CalledProcessError with pip's own words shown."""
    folder = VENVS / peer
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "-r"]
    quiet = ["--disable-pip-version-check", "--no-warn-script-location"]
    _run([*pip, str(requirements(peer)), *quiet])
    (folder / "made-from.txt").write_text(requirements(peer).read_text())


def copy_source(folder: Path) -> Path:
    """Umbel's source as it is now: an edit during a run must not change what is measured."""
    copy = folder / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def _run(command: list[str]) -> None:
    """Run it to its end; when we are stopped, it stops with all that it has started."""
    child = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        code = child.wait()
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    if code:
        raise subprocess.CalledProcessError(code, command)
