"""The application for soak tests: a steady mix of tasks, and optional leaks."""

from __future__ import annotations

import asyncio
import os
import socket
import time

from umbel import Retry, Umbel, current

app = Umbel(namespace="scenario")
LEAK = os.environ.get("SOAK_LEAK", "")
leaked: list[object] = []


@app.task
async def coroutine(number: int) -> dict[str, object]:
    if LEAK == "memory":
        leaked.append(bytearray(100_000))
    if LEAK == "connection" and number % 5 == 0:
        leaked.append(socket.create_connection(_listener().getsockname()))
    await asyncio.sleep(0.01)
    return {"number": number, "text": "x" * 500}


@app.task
def thread(number: int) -> int:
    current.progress(1, of=2)
    time.sleep(0.01)
    return number


@app.task(retry=Retry(3, first=0.2))
async def fails_once(number: int) -> int:
    if current.job.attempt == 1:
        raise ValueError(number)
    return number


def _listener() -> socket.socket:
    """Return a listening socket of this process, which never accepts a connection."""
    known = [one for one in leaked if isinstance(one, socket.socket)]
    if not known:
        leaked.append(socket.create_server(("127.0.0.1", 0), backlog=100_000))
    first = leaked[0]
    assert isinstance(first, socket.socket)
    return first


def publish_for_ever(rate: float) -> None:
    """Publish a few jobs at a time, as steadily as the machine allows."""
    number, due = 0, time.monotonic()
    while True:
        calls = [coroutine.s(number), thread.s(number), coroutine.options(delay=1).s(number)]
        if number % 10 == 0:
            calls.append(fails_once.s(number))
        app.publish_many(calls)
        number += 1
        due += len(calls) / rate
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    publish_for_ever(float(os.environ["SOAK_RATE"]))
