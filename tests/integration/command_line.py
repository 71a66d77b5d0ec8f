"""The command line in real processes, for tests: a folder with an application, and its commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HANG_SECONDS = 60.0
"""Seconds after which a process is considered to hang. Tests measure no other time."""

TASKS = """
import asyncio, logging, os, time
from umbel import Retry, Umbel, current, step

app = Umbel()
log = logging.getLogger("mine")

@app.task
def add(a: int, b: int) -> int:
    log.info("adding %d", a)
    return a + b

@app.task(queue="mail")
async def greet(name: str, loud: bool = False) -> str:
    return f"hello {name}" + "!" * loud

@app.task(retry=Retry(0))
def divide(number: int, by: int) -> float:
    return number / by


@app.task(retry=Retry(1, first=0.05))
def fail(why: str) -> None:
    raise ValueError(why)

@app.task(retry=Retry(0))
def stepwise() -> None:
    step.named("load")(add, 1, 2)
    step(add, 3, 4)
    step(add, 5, 6)
    raise ValueError("no further")

@app.task
async def wait(marker: str) -> str:
    current.progress(3, of=10)
    print("WAITING", flush=True)
    while not os.path.exists(marker):
        await asyncio.sleep(0.01)
    return "waited"

@app.task
def die() -> None:
    os._exit(9)
"""


class Running:
    """A process whose output is read line by line while it runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, text: str, times: int = 1) -> str:
        """Wait until the text has occurred this many times. Return its last line."""

        def found() -> list[str]:
            return [line for line in self.lines if text in line]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= times, HANG_SECONDS), self.lines
            return found()[times - 1]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait until the process has ended and its output is read. Return its exit code."""
        code = self.process.wait(HANG_SECONDS)
        self._reader.join(HANG_SECONDS)
        return code


class Shell:
    """A folder with an application, and commands run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tasks.py").write_text(TASKS)
        others = {name: value for name, value in os.environ.items() if not name.startswith("UMBEL")}
        self.env = others | {"UMBEL_URL": "sqlite:///umbel.db?synchronous=off", "NO_COLOR": "1"}

    def run(self, *words: str, app: str | None = "tasks", **env: str) -> Any:
        command = [sys.executable, "-m", "umbel", *(["-A", app] if app else []), *words]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def say(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout).strip()

    def ask(self, *words: str) -> Any:
        return json.loads(self.say(*words, "--json"))

    @contextmanager
    def start(self, *words: str, app: str | None = "tasks") -> Iterator[Running]:
        command = [sys.executable, "-m", "umbel", *(["-A", app] if app else []), *words]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running = Running(process)
        try:
            yield running
        finally:
            if process.poll() is None:
                process.kill()
            running.end()

    @contextmanager
    def worker(self, *options: str) -> Iterator[Running]:
        with self.start("worker", "--log-format", "json", *options) as worker:
            worker.wait_for("worker started")
            yield worker


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for a condition that only the store can answer."""
    until = time.monotonic() + HANG_SECONDS
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)
