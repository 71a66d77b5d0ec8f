"""Callers and workers: processes of a system, started, listened to, and always ended."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks import meters
from benchmarks.environments import ROOT

_LIMIT = 300.0
"""Seconds that one caller may take in all."""
_PARTING = 60.0
_STOPPING = 5.0


class Failed(Exception):
    """A system did not do what it was asked to; its own last words are in the text."""


class Caller:
    """A caller that is connected and warm, and waits for the word."""

    def __init__(self, child: subprocess.Popen[str], log: Path) -> None:
        self._child, self._log = child, log
        self.offered = self._hear().get("offered", True)

    def go(self) -> dict[str, Any]:
        """Let it do its work, and say what came of it. It stays connected."""
        assert self._child.stdin is not None
        self._child.stdin.write("go\n")
        self._child.stdin.flush()
        return self._hear()

    def part(self) -> None:
        """Let it close its connections and end."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(_PARTING)

    def _hear(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            self._child.wait()
            raise Failed(last_words(self._log))
        heard: dict[str, Any] = json.loads(line)
        return heard


class Crew:
    """The worker processes that run now."""

    def __init__(self, children: list[subprocess.Popen[bytes]]) -> None:
        self._children = children

    def processes(self) -> list[psutil.Process]:
        return meters.tree(child.pid for child in self._children)

    def ended(self) -> bool:
        return any(child.poll() is not None for child in self._children)


@contextmanager
def caller(command: list[str], environment: dict[str, str], log: Path) -> Iterator[Caller]:
    """A caller, ready. One that hangs is ended, and its silence is heard as a failure."""
    with log.open("w") as errors:
        child = subprocess.Popen(
            command,
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    limit = threading.Timer(_LIMIT, child.kill)
    limit.daemon = True
    limit.start()
    try:
        found = Caller(child, log)
        yield found
        found.part()
    finally:
        limit.cancel()
        _kill(child)


@contextmanager
def crew(commands: list[list[str]], environment: dict[str, str], log: Path) -> Iterator[Crew]:
    """Workers, one for each command."""
    children: list[subprocess.Popen[bytes]] = []
    with log.open("w") as output:
        try:
            for command in commands:
                child = subprocess.Popen(
                    command,
                    env=environment,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
                children.append(child)
            yield Crew(children)
        finally:
            _stop(children)


def run(command: list[str], environment: dict[str, str], log: Path) -> None:
    """Run a command to its end. Raises Failed."""
    with log.open("w") as output:
        done = subprocess.run(
            command, env=environment, cwd=ROOT, stdout=output, stderr=output, timeout=_PARTING
        )
    if done.returncode:
        raise Failed(last_words(log))


def last_words(log: Path) -> str:
    """The end of what a process has written."""
    return log.read_text(errors="replace")[-600:].strip() or "it ended without a word"


def _kill(child: subprocess.Popen[str]) -> None:
    if child.poll() is None:
        child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            stream.close()


def _stop(children: list[subprocess.Popen[bytes]]) -> None:
    everyone = meters.tree(child.pid for child in children)
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(everyone, timeout=_STOPPING)
    for process in alive:
        try:
            process.kill()
        except psutil.Error:
            continue
    for child in children:
        child.wait()
