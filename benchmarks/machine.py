"""Where it was measured."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import version
from pathlib import Path

import psutil

from benchmarks.environments import requirements
from benchmarks.servers import Servers, about
from benchmarks.systems import LABELS


def describe(servers: Servers, peers: list[str]) -> dict[str, str]:
    """The machine, the servers and the versions, a line each."""
    found = {
        "machine": f"{os.cpu_count()} cores ({_processor()}), {_memory():.0f} GiB, {_system()}",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
    }
    found |= {LABELS[name]: about(name, url) for name, url in servers.items()}
    found["peers"] = ", ".join(_pinned(peer) for peer in sorted(set(peers)))
    return found


def is_busy() -> bool:
    """Whether others use a good part of the machine."""
    return os.getloadavg()[0] > (os.cpu_count() or 1) / 2


def _pinned(peer: str) -> str:
    if peer == "umbel":
        return f"umbel {version('umbel')}"
    pins = dict(line.split("==") for line in requirements(peer).read_text().split() if "==" in line)
    return f"{peer} {pins[peer]}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> float:
    return float(psutil.virtual_memory().total) / 2**30


def _system() -> str:
    return f"{platform.system()} {platform.release()}"
