"""The application that scenario tests run in real worker processes."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from umbel import Retry, Umbel, current
from umbel.testing.history import Tracer

app = Umbel(namespace="scenario")
tracer = Tracer(Path(os.environ.get("TRACES", ".")))


@app.task
async def work(seconds: float) -> None:
    tracer.leave("start")
    await asyncio.sleep(seconds)
    tracer.leave("end")


@app.task
async def work_until_file_exists(file: str) -> None:
    """Run until the file exists."""
    tracer.leave("start")
    while not Path(file).exists():
        await asyncio.sleep(0.02)
    tracer.leave("end")


@app.task
def read_in_thread(pipe: str) -> None:
    """Wait in an uninterruptible call until a test opens the other end of the pipe."""
    tracer.leave("start")
    Path(pipe).read_bytes()
    tracer.leave("end")


@app.task(max_deaths=1)
async def fragile_work(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.task
def work_in_thread(seconds: float) -> None:
    tracer.leave("start")
    time.sleep(seconds)
    tracer.leave("end")


@app.task
async def block_the_loop(seconds: float) -> None:
    tracer.leave("start")
    time.sleep(seconds)
    tracer.leave("end")


@app.task
def hold_the_gil(seconds: float) -> None:
    """Holds the interpreter itself: a C call that does not release the GIL."""
    import ctypes

    tracer.leave("start")
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    tracer.leave("end")


@app.task(retry=Retry(0))
def kill_the_worker() -> None:
    tracer.leave("start")
    os._exit(9)


@app.task(interruptible=True)
async def interruptible(seconds: float) -> None:
    tracer.leave("start")
    await asyncio.sleep(seconds)
    tracer.leave("end")


@app.task
def count_up(to: int) -> int:
    for done in range(to):
        current.progress(done, of=to)
        time.sleep(0.01)
    return to
