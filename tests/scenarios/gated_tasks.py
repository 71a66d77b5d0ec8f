"""Tasks behind limits and rates, for scenario tests in real worker processes.

They say from inside what they see: by traces, and by a connection to a turnstile for as long as one
runs. A process that is killed closes its connections, so whoever counts them counts who runs.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from umbel import Limit, Umbel
from umbel.backends.sqlite import broker as sqlite_broker
from umbel.testing.history import Tracer

app = Umbel(namespace="scenario")
traces = Path(os.environ.get("TRACES", "."))
tracer = Tracer(traces)
looks = 0
"""How often this worker has looked for work in a SQLite file."""

_claim = sqlite_broker.claim


def _counted_claim(*args: Any, **kwargs: Any) -> Any:
    global looks
    looks += 1
    return _claim(*args, **kwargs)


sqlite_broker.claim = _counted_claim


@app.service
async def tell_looks() -> None:
    file = traces / f"{os.getpid()}.looks"
    while True:
        file.write_text(str(looks))
        await asyncio.sleep(0.2)


@contextmanager
def inside() -> Iterator[None]:
    """Let the turnstile know that a task runs, for the time of the block."""
    with socket.create_connection(("127.0.0.1", int(os.environ["TURNSTILE"]))) as connection:
        assert connection.recv(1) == b"+"
        yield


@app.task(name="limited", limit=5, max_deaths=100)  # who is killed is chance, not its fault
async def limited(seconds: float) -> None:
    tracer.leave("start")
    with inside():
        await asyncio.sleep(seconds)
    tracer.leave("end")


@app.task(name="paced", rate=os.environ.get("RATE", "200/m"))
async def paced() -> None:
    tracer.leave("start")


@app.task(name="tenant_work", limit=Limit(4, token="tenant"))
async def tenant_work(tenant: str, seconds: float) -> None:
    tracer.leave("start")
    await asyncio.sleep(seconds)
    tracer.leave("end")
