"""Tasks behind limits and rates, for scenario tests in real worker processes.

Each task records traces and keeps a connection to a run counter open while it runs. A killed
process closes its connections, so the number of connections is the number of running tasks.
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
claims = 0
"""How often this worker has tried to claim jobs from a SQLite file."""

_claim = sqlite_broker.claim


def _counted_claim(*args: Any, **kwargs: Any) -> Any:
    global claims
    claims += 1
    return _claim(*args, **kwargs)


sqlite_broker.claim = _counted_claim


@app.service
async def write_claim_count() -> None:
    file = traces / f"{os.getpid()}.claims"
    while True:
        file.write_text(str(claims))
        await asyncio.sleep(0.2)


@contextmanager
def counted() -> Iterator[None]:
    """Let the run counter know that a task runs, for the duration of the block."""
    with socket.create_connection(("127.0.0.1", int(os.environ["RUN_COUNTER_PORT"]))) as connection:
        assert connection.recv(1) == b"+"
        yield


@app.task(name="limited", limit=5, max_deaths=100)  # kills are random and not caused by the task
async def limited(seconds: float) -> None:
    tracer.leave("start")
    with counted():
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
