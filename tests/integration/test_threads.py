"""Stopping threads must leave the interpreter as it was.

CPython 3.11 keeps a flag up when an exception for a thread is taken back, or when its thread ends
before it is raised. From then on every function call takes a slow path, and with a debugger or
a coverage tool (``sys.settrace``) it never returns.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys, threading, time
from umbel import Umbel, WorkerOptions, Retry

app = Umbel("sqlite:///:memory:")

@app.task
def quick(n: int) -> int:
    return n

@app.task(timeout=0.05, retry=Retry(0))
def stopped() -> None:
    while True:
        time.sleep(0.001)

@app.task(timeout=0.05, retry=Retry(0))
def stubborn() -> str:
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        try:
            time.sleep(0.001)
        except BaseException:
            pass
    return "swallowed it"

async def main() -> None:
    worker = app.worker(WorkerOptions(cpu=2))
    running = asyncio.create_task(worker.run())
    tasks = {"quick": quick.s(1), "stopped": stopped.s(), "stubborn": stubborn.s()}
    for handle in await app.apublish_many([tasks[sys.argv[1]] for _ in range(20)]):
        try:
            await handle
        except TimeoutError:
            pass
    worker.stop()
    await running

asyncio.run(main())

def traced() -> str:
    return "alive"

sys.settrace(lambda *about: None)
said = traced()
sys.settrace(None)
print(said)
"""


@pytest.mark.parametrize("name", ["quick", "stopped", "stubborn"])
def test_a_process_can_be_traced_after_its_threads_ran_and_were_stopped(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "alive\n", done.stderr
