"""An import in steps, run in real worker processes that are killed while it runs."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from umbel import Umbel, step

app = Umbel()
LOG = Path(os.environ.get("STEPS_LOG", "steps.log"))
INSERT = "insert into imported (n) values ({})"


def note(n: int) -> None:
    """Append one line per execution of a step, in one write, so that a kill cannot split it."""
    with LOG.open("ab", buffering=0) as log:
        log.write(f"{n}\n".encode())


def fetch(n: int, seconds: float) -> int:
    note(n)
    time.sleep(seconds)
    return n


async def afetch(n: int, seconds: float) -> int:
    note(n)
    await asyncio.sleep(seconds)
    return n


def save(connection: Any, n: int, seconds: float) -> int:
    note(n)
    connection.execute(INSERT.format(n))
    time.sleep(seconds)
    return n


async def asave(connection: Any, n: int, seconds: float) -> int:
    note(n)
    done = connection.execute(INSERT.format(n))
    if asyncio.iscoroutine(done):
        await done
    await asyncio.sleep(seconds)
    return n


@app.task
def plain(count: int, seconds: float) -> int:
    return sum(step(fetch, n, seconds) for n in range(count))


@app.task
async def plain_async(count: int, seconds: float) -> int:
    return sum([await step(afetch, n, seconds) for n in range(count)])


@app.task
def transactional(count: int, seconds: float) -> int:
    return sum(step.transaction(save, n, seconds) for n in range(count))


@app.task
async def transactional_async(count: int, seconds: float) -> int:
    return sum([await step.transaction(asave, n, seconds) for n in range(count)])
