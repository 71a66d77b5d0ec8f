"""``make walk``: the files of Umbel that one job passes through, from ``delay()`` to ``get()``.

A worker runs in a thread of this process. Every Python function that is called while a job is on
its way is noted with its file. Heartbeats and other duties run meanwhile, so several jobs are sent,
and only files that all of them pass through are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from running import postgres_schema, rabbitmq, redis

import umbel
from umbel import Umbel, WorkerOptions
from umbel.messages import fresh_id

ROOT = Path(umbel.__file__).parent
WHERE = ("sqlite", "postgres", "redis", "rabbitmq+redis")
JOBS = 10


class Tracer:
    """Notes the files of Umbel whose functions are called while it is switched on."""

    def __init__(self) -> None:
        self.files: set[str] | None = None

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        files = self.files
        if files is not None and event == "call":
            files.add(frame.f_code.co_filename)

    def install(self) -> None:
        """For this thread and all that start from now on."""
        threading.setprofile(self)
        sys.setprofile(self)


@contextmanager
def working(app: Umbel) -> Iterator[None]:
    """A worker in a thread of its own."""
    worker = app.worker(WorkerOptions(name="walk", uvloop=False))
    loops: list[asyncio.AbstractEventLoop] = []
    started = threading.Event()

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        running = asyncio.ensure_future(worker.run())
        await worker.started.wait()
        started.set()
        await running

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    started.wait(30)
    try:
        yield
    finally:
        loops[0].call_soon_threadsafe(worker.stop)
        thread.join(30)


@contextmanager
def application(where: str, namespace: str) -> Iterator[Umbel]:
    """One on a backend of its own, which is removed afterwards."""
    with ExitStack() as stack:
        if where == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            broker = store = f"sqlite:///{folder}/umbel.db"
        elif where == "postgres":
            broker = store = stack.enter_context(postgres_schema())
        else:
            broker = store = stack.enter_context(redis(namespace))
        if where == "rabbitmq+redis":
            broker = stack.enter_context(rabbitmq())
        app = Umbel(broker, store=store, namespace=namespace, deadline=20.0)
        stack.callback(app.close)
        yield app


def walk(app: Umbel, tracer: Tracer) -> list[str]:
    """The files that every job passes through."""

    @app.task(name="walk.add")
    async def add(a: int, b: int) -> int:
        return a + b

    passed: list[set[str]] = []
    with working(app):
        for number in range(2 * JOBS):  # the first ones open connections
            tracer.files = set() if number >= JOBS else None
            assert add.delay(number, 1).get(timeout=30) == number + 1
            if tracer.files is not None:
                passed.append(tracer.files)
            tracer.files = None
    found = set.intersection(*passed)
    here = [Path(name) for name in found if name.startswith(f"{ROOT}/")]
    return sorted(str(path.relative_to(ROOT)) for path in here)


def main() -> None:
    parser = argparse.ArgumentParser(prog="walk", description=__doc__)
    parser.add_argument("--on", choices=WHERE, action="append", help="only there")
    parser.add_argument("--list", action="store_true", help="name the files")
    options = parser.parse_args()
    tracer = Tracer()
    tracer.install()
    for name in options.on or WHERE:
        with application(name, f"walk{fresh_id()[-8:]}") as app:
            files = walk(app, tracer)
        print(f"{name}: {len(files)} files")
        for file in files if options.list else ():
            print(f"  {file}")


if __name__ == "__main__":
    main()
