"""``umbel worker --processes N``: a small parent that keeps N workers alive.

It does not import the application and shares no pipe with its children: it starts them as fresh
interpreters, passes signals on, starts dead ones again, and ends when they have all ended.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from typing import Any, cast

from umbel.cli.errors import FAILED, USAGE
from umbel.cli.working import has_terminal, worker_name
from umbel.observability.logs import Logs, Style, configure_logs
from umbel.resilience import Backoff

_WAITS = Backoff(first=0.1, factor=2, cap=15)
_SETTLED = 5.0
"""Seconds of life after which a death counts as the first again."""
_STOPPED = (0, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, 130)
"""How a child ends that was told to stop; the signal itself ends one that was still starting."""
_PR_SET_PDEATHSIG = 1


def run_fleet(
    address: str | None, processes: int, style: str, level: str, chosen: dict[str, Any]
) -> int:
    """Run the parent; returns its exit code: 0 when every child stopped cleanly."""
    logs = configure_logs(cast(Style, style), level)
    try:
        fleet = Fleet(logs)
        chosen = {**chosen, "of": processes}
        commands = [command_of(address, index, style, level, chosen) for index in range(processes)]
        names = [worker_name(chosen.get("name"), index) for index in range(processes)]
        return asyncio.run(fleet.run(dict(zip(names, commands, strict=True))))
    finally:
        logs.close()


def command_of(
    address: str | None, index: int, style: str, level: str, chosen: dict[str, Any]
) -> list[str]:
    """The command line of one child."""
    words = [sys.executable, "-m", "umbel", *(["-A", address] if address else []), "worker"]
    words += ["--index", str(index), "--log-format", style, "--log-level", level]
    for name in ("queues", "name", "io", "cpu", "lease", "order", "weights", "grace", "of"):
        if chosen.get(name) is not None:
            words.append(f"--{name}={chosen[name]}")
    if chosen.get("index") is not None:
        words.append(f"--replica={chosen['index']}")
    if chosen.get("probe") is not None:
        host, port = chosen["probe"]
        words.append(f"--probe={host}:{port + index if port else 0}")
    for flag in ("no_inbox", "no_signing", "no_uvloop"):
        if chosen.get(flag):
            words.append(f"--{flag.replace('_', '-')}")
    return words


class Fleet:
    """Child processes, kept alive until told to stop."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._children: dict[str, asyncio.subprocess.Process] = {}
        self._stop = asyncio.Event()
        self._signals = 0
        self._codes: list[int] = []

    async def run(self, commands: dict[str, list[str]]) -> int:
        """Run until told to stop or every child has given up; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        loop.add_signal_handler(signal.SIGHUP, self._signalled if has_terminal() else self._reload)
        self._tell("info", "processes start", processes=len(commands))
        await asyncio.gather(*(self._keep(name, words) for name, words in commands.items()))
        self._tell("info", "all processes ended")
        if USAGE in self._codes:
            return USAGE
        return FAILED if any(self._codes) else 0

    def _signalled(self) -> None:
        """The first asks to stop, any further one to hurry; see ``stop_on_signals``."""
        self._signals += 1
        self._stop.set()
        word = "stopping" if self._signals == 1 else "stopping now"
        self._tell("info", word, processes=len(self._children))
        for child in list(self._children.values()):
            self._pass_on(child)

    def _reload(self) -> None:
        """Each child begins again, with the code as it is now, when it has finished what runs."""
        self._tell("info", "reloading", processes=len(self._children))
        for child in list(self._children.values()):
            if child.returncode is None:
                child.send_signal(signal.SIGHUP)

    def _pass_on(self, child: asyncio.subprocess.Process) -> None:
        if child.returncode is None:
            child.send_signal(signal.SIGTERM if self._signals == 1 else signal.SIGINT)

    async def _keep(self, name: str, words: list[str]) -> None:
        """Keep one child alive. Its last exit code counts for ours."""
        deaths = 0
        while not self._stop.is_set():
            began = time.monotonic()
            code = await self._live(name, words)
            if self._stop.is_set() or code == USAGE:
                code = 0 if code in _STOPPED else code
                self._codes.append(code)
                if code:
                    self._tell("error", "a process ended", worker=name, **_cause(code))
                return
            deaths = 1 if time.monotonic() - began > _SETTLED else deaths + 1
            delay = round(_WAITS.delay(deaths, name), 2)
            text = "a process died and is started again"
            self._tell("error", text, worker=name, **_cause(code), delay=delay)
            await self._rest(delay)

    async def _live(self, name: str, words: list[str]) -> int:
        child = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            env=os.environ | {"UMBEL_FLEET": str(os.getpid())},
            # A terminal's Ctrl-C is for the parent, which passes it on: once, not twice.
            process_group=0,
        )
        self._children[name] = child
        if self._signals:
            self._pass_on(child)  # told to stop while this one was being started
        try:
            return await child.wait()
        finally:
            del self._children[name]

    async def _rest(self, delay: float) -> None:
        try:
            async with asyncio.timeout(delay):
                await self._stop.wait()
        except TimeoutError:
            pass

    def _tell(self, level: str, event: str, **fields: Any) -> None:
        self._logs.write({"level": level, "event": event, **fields})


def _cause(code: int) -> dict[str, Any]:
    if code >= 0:
        return {"exit_code": code}
    try:
        return {"signal": signal.Signals(-code).name}
    except ValueError:
        return {"signal": -code}


# --- in the child ----------------------------------------------------------------------------


def follow_parent(parent: int) -> None:
    """End with the parent: even SIGKILL of it leaves no worker behind that nobody looks after.

    Linux sends SIGTERM to this process when its parent is gone, so it stops in phases.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    # It may have died before that line.
    if os.getppid() != parent:
        raise SystemExit(FAILED)
