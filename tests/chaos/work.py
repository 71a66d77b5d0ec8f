"""The tasks of a chaos run, of every kind. Each logs when it starts and how it ends."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaos.event_log import EventLog
from umbel import Retry, Snooze, current, task
from umbel.messages import Finish, Lease, Settlement, disposition
from umbel.router import Router

event_log = EventLog(Path(os.environ.get("CHAOS_EVENT_LOG", ".")), "worker-")

MANY = 1000
"""``max_deaths`` of most tasks. A chaos run kills workers so often that a harmless job may be alone
in a killed worker three times; only ``poison`` and ``fragile`` may be buried for that."""


@contextmanager
def logged(kind: str) -> Iterator[None]:
    lease = current.lease
    who = {"job": lease.job, "fence": lease.fence, "owner": lease.owner, "kind": kind}
    event_log.write("start", **who)  # type: ignore[arg-type]
    try:
        yield
    except BaseException as stop:
        event_log.write("stopped", note=type(stop).__name__, **who)  # type: ignore[arg-type]
        raise
    event_log.write("end", **who)  # type: ignore[arg-type]


@task(max_deaths=MANY)
async def coroutine(seconds: float) -> int:
    with logged("coroutine"):
        await asyncio.sleep(seconds)
        return current.lease.fence


@task(max_deaths=MANY)
def thread(seconds: float) -> int:
    with logged("thread"):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            current.checkpoint()
            current.progress(time.monotonic(), of=until)
            time.sleep(0.05)
        return current.lease.fence


@task(max_deaths=MANY, interruptible=True)
async def interruptible(seconds: float) -> int:
    with logged("coroutine"):
        await asyncio.sleep(seconds)
        return current.lease.fence


@task(max_deaths=MANY)
async def alone(seconds: float) -> int:
    """Published with a unique key."""
    with logged("coroutine"):
        await asyncio.sleep(seconds)
        return current.lease.fence


@task(max_deaths=MANY, retry=Retry(5, first=0.2, cap=1))
async def fails_twice() -> int:
    with logged("coroutine"):
        if current.job.attempt < 3:
            raise ValueError(f"attempt {current.job.attempt}")
        return current.lease.fence


@task(max_deaths=MANY, retry=Retry(1, first=0.2))
def fails() -> int:
    with logged("thread"):
        raise ValueError("always")


@task(max_deaths=MANY)
async def snoozes() -> int:
    with logged("coroutine"):
        if current.lease.fence < 3:
            raise Snooze(0.2)
        return current.lease.fence


@task(max_deaths=MANY, track="failures")
async def forgotten(seconds: float) -> int:
    """Leaves no record when it succeeds."""
    with logged("coroutine"):
        await asyncio.sleep(seconds)
        return current.lease.fence


@task(max_deaths=1)
async def fragile(seconds: float) -> int:
    """Never runs again once a worker has died with it."""
    with logged("coroutine"):
        await asyncio.sleep(seconds)
        return current.lease.fence


@task(retry=Retry(0))
def poison() -> None:
    """Kills the worker that runs it."""
    with logged("thread"):
        os._exit(9)


def watch_settling() -> None:
    """Log the store's answer to each outcome: settled or refused."""
    plain = Router.settle

    async def settle(self: Router, settlements: Sequence[Settlement]) -> list[Lease]:
        refused = await plain(self, settlements)
        for settlement in settlements:
            lease, end = settlement.lease, disposition(settlement.outcome)
            who: dict[str, Any] = {"job": lease.job, "fence": lease.fence, "owner": lease.owner}
            if lease in refused:
                event_log.write("refused", note=settlement.attempt.ended, **who)
            elif isinstance(end, Finish):
                event_log.write("settled", note=settlement.attempt.ended, **who)
        return refused

    Router.settle = settle  # type: ignore[method-assign]


if "CHAOS_EVENT_LOG" in os.environ:
    watch_settling()
if "CHAOS_PLANT" in os.environ:
    from chaos import planted_bugs

    planted_bugs.plant(os.environ["CHAOS_PLANT"])
