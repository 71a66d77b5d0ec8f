"""What is read beside the clock: processor time, memory, transactions, bytes of write-ahead log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

_NANO = 1e9

Used = Mapping[int, float]
"""Seconds of processor time by process id."""


@dataclass(frozen=True)
class Reading:
    """Everything at one moment. None: not known here."""

    workers: float = 0.0
    server: Used | None = None
    log: int | None = None


def spent(before: Used | None, after: Used | None) -> float | None:
    """Seconds between two readings. What ended in between is not known and not counted."""
    if before is None or after is None:
        return None
    return sum(used - before.get(pid, 0.0) for pid, used in after.items())


def tree(roots: Iterable[int]) -> list[psutil.Process]:
    """These processes and all below them."""
    found: list[psutil.Process] = []
    for pid in roots:
        try:
            root = psutil.Process(pid)
            found += [root, *root.children(recursive=True)]
        except psutil.Error:
            continue
    return found


def processor_time(processes: Iterable[psutil.Process]) -> float:
    """Seconds these processes have used."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def of_threads(processes: Iterable[psutil.Process]) -> Used | None:
    """What the threads of these processes have used, to the microsecond.

    A thread that ends takes its time with it: only for processes at rest.
    """
    found: dict[int, float] = {}
    for process in processes:
        threads = [int(folder.name) for folder in Path(f"/proc/{process.pid}/task").glob("*")]
        found |= by_id(threads) or {}
    return found or None


def listening(port: int) -> list[psutil.Process]:
    """The processes of this machine that answer on a port; none if we may not see them."""
    try:
        found = psutil.net_connections("tcp")
    except psutil.Error:
        return []
    ours = [one for one in found if one.status == psutil.CONN_LISTEN and one.laddr.port == port]
    return [psutil.Process(pid) for pid in {one.pid for one in ours} if pid is not None]


def resident(processes: Iterable[psutil.Process]) -> int:
    """Bytes of memory, pages that several share counted in each."""
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


def peak(processes: Iterable[psutil.Process]) -> int:
    """The most bytes of memory that each of these processes has had, added up."""
    total = 0
    for process in processes:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            continue
        found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
        total += int(found[0]) * 1024 if found else 0
    return total


def by_id(pids: Iterable[int]) -> Used | None:
    """What each has used, to the microsecond; None if none of them runs on this machine."""
    found: dict[int, float] = {}
    for pid in pids:
        try:
            nanoseconds = Path(f"/proc/{pid}/schedstat").read_text().split()[0]
        except OSError:
            continue
        found[pid] = int(nanoseconds) / _NANO
    return found or None
