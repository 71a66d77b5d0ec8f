"""Tasks of all kinds that count themselves, for deployments in real worker processes.

Each process has a file of two numbers, mapped into its memory: how many runs of uninterruptible
tasks have begun and how many have ended. From these files a test knows what runs, and whether
anything has begun since, without asking the store and without a clock.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from umbel import Umbel
from umbel.testing.history import Tracer

app = Umbel(namespace="scenario")
traces = Path(os.environ.get("TRACES", "."))
tracer = Tracer(traces)
_lock = threading.Lock()
_counts: mmap.mmap | None = None


def _count(index: int) -> None:
    global _counts
    with _lock:
        if _counts is None:
            with (traces / f"{os.getpid()}.counts").open("w+b") as file:
                file.write(bytes(16))
                file.flush()
                _counts = mmap.mmap(file.fileno(), 16)
        (many,) = struct.unpack_from("q", _counts, index * 8)
        struct.pack_into("q", _counts, index * 8, many + 1)


@contextmanager
def counted() -> Iterator[None]:
    """Count a run that must not be interrupted."""
    _count(0)
    try:
        yield
    finally:
        _count(1)


def counts(folder: Path) -> tuple[int, int]:
    """Return how many runs have begun and ended in all processes."""
    found = [struct.unpack("qq", file.read_bytes()) for file in folder.glob("*.counts")]
    return sum(begun for begun, _ in found), sum(ended for _, ended in found)


@app.task(name="short")
async def short() -> None:
    with counted():
        await asyncio.sleep(0)


@app.task(name="firm")
def firm(seconds: float) -> None:
    """Not interruptible; runs for the given time."""
    with counted():
        time.sleep(seconds)


@app.task(name="gentle", interruptible=True)
async def gentle(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.task(name="traced")
async def traced(seconds: float) -> None:
    """Not interruptible; records a trace of its start and its end."""
    tracer.leave("start")
    await asyncio.sleep(seconds)
    tracer.leave("end")


@app.task(name="traced_gentle", interruptible=True)
def traced_gentle(seconds: float) -> None:
    """May be stopped at any point; then there is no trace of its end."""
    tracer.leave("start")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)
    tracer.leave("end")


@app.task(name="stubborn", max_deaths=1000)
def stubborn(mark: str) -> None:
    """The first run cannot be stopped and outlasts any grace period: its worker must be killed."""
    file = traces / f"{mark}.mark"
    if not file.exists():
        file.touch()
        time.sleep(600)
