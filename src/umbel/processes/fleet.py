"""``umbel worker --processes N``: a small parent that supervises N worker processes.

The parent imports neither the application nor a driver nor asyncio, so it stays below 20 MB. It
starts its children as new interpreters, passes signals on to them, restarts those that died, and
ends when all of them have ended.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from umbel.observability.rendering import LogStyle, choose_renderer
from umbel.observability.writer import Writer
from umbel.processes.exit_codes import FAILED, USAGE
from umbel.processes.fleet_member import VARIABLE
from umbel.processes.signals import SignalPipe, is_interactive
from umbel.resilience import Backoff

_RESTART_DELAYS = Backoff(first=0.1, factor=2, cap=15)
_STABLE_SECONDS = 5.0
"""A child that lived longer is restarted as if it had died for the first time."""
_STOPPED = (0, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, 130)
"""Exit codes of a child that was asked to stop; the signal itself ends one that still starts."""
_VALUE_OPTIONS = ("queues", "io", "cpu", "lease", "order", "weights", "grace")
_FLAGS = ("no_inbox", "no_signing", "no_uvloop")


def run_fleet(
    address: str | None,
    processes: int,
    style: LogStyle,
    level: str,
    options: Mapping[str, Any],
) -> int:
    """Run the parent until all children have ended; return its exit code.

    ``options`` are those of ``umbel worker``, by their names in Python. The exit code is 0 if every
    child stopped without an error.
    """
    name = options.get("name") or socket.gethostname() or "worker"
    commands = {
        f"{name}.{index}": child_command(
            address, name, index, processes, style=style, level=level, options=options
        )
        for index in range(processes)
    }
    log = _Log(style)
    try:
        return Fleet(commands, log).run()
    finally:
        log.close()


def child_command(
    address: str | None,
    name: str,
    index: int,
    processes: int,
    *,
    style: str,
    level: str,
    options: Mapping[str, Any],
) -> list[str]:
    """Return the command line of one child."""
    command = [sys.executable, "-m", "umbel", *(["-A", address] if address else []), "worker"]
    # A child is no parent of a fleet, even if the environment sets the number of processes.
    command += [f"--name={name}", f"--index={index}", f"--of={processes}", "--processes=1"]
    command += [f"--log-format={style}", f"--log-level={level}"]
    command += [f"--{o}={options[o]}" for o in _VALUE_OPTIONS if options.get(o) is not None]
    command += [f"--{flag.replace('_', '-')}" for flag in _FLAGS if options.get(flag)]
    if options.get("index") is not None:
        command.append(f"--replica={options['index']}")
    if options.get("probe") is not None:
        host, port = options["probe"]
        command.append(f"--probe={host}:{port + index if port else 0}")
    return command


@dataclass(slots=True)
class _Child:
    name: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    deaths: int = 0
    restart_at: float = 0.0


class _Log:
    """Writes the parent's log lines. ``configure_logs`` would load the packages of a worker."""

    def __init__(self, style: LogStyle) -> None:
        self._render = choose_renderer(style, sys.stdout)
        self._writer = Writer(sys.stdout)

    def write(self, level: str, event: str, **fields: Any) -> None:
        line = {"time": time.time(), "level": level, "event": event, **fields}
        self._writer.put(self._render(line))

    def close(self) -> None:
        self._writer.close()


class Fleet:
    """Child processes that are restarted when they die, until the parent is asked to stop."""

    def __init__(self, commands: Mapping[str, list[str]], log: _Log) -> None:
        self._children = [_Child(name, command) for name, command in commands.items()]
        self._log = log
        self._stop_signals = 0
        self._exit_codes: list[int] = []
        self._error_token, self._token_writer = os.pipe()
        os.set_blocking(self._error_token, False)

    def run(self) -> int:
        """Run until every child has ended and is not restarted; return the exit code."""
        signals = SignalPipe((signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        self._log.write("info", "starting worker processes", processes=len(self._children))
        self._put_error_token()
        for child in self._children:
            self._start(child)
        while self._children:
            for number in signals.wait(self._seconds_to_restart()):
                self._handle_signal(number)
            self._reap()
            self._restart_due()
        self._log.write("info", "all worker processes have ended")
        if USAGE in self._exit_codes:
            return USAGE
        return FAILED if any(self._exit_codes) else 0

    # --- signals ---------------------------------------------------------------------------

    def _handle_signal(self, number: int) -> None:
        if number == signal.SIGHUP and not is_interactive():
            self._reload()
        elif number != signal.SIGCHLD:
            self._stop()

    def _stop(self) -> None:
        """Ask the children to stop; from the second signal on, without grace.

        See ``stop_on_signals`` for the meaning of the two signals in a child.
        """
        self._stop_signals += 1
        self._children = [child for child in self._children if child.process is not None]
        event = "stopping" if self._stop_signals == 1 else "stopping without grace"
        self._log.write("info", event, processes=len(self._children))
        self._signal_children(signal.SIGTERM if self._stop_signals == 1 else signal.SIGINT)

    def _reload(self) -> None:
        """Let each child finish what runs and restart itself with the code as it is then."""
        self._log.write("info", "reloading", processes=len(self._children))
        self._put_error_token()
        self._signal_children(signal.SIGHUP)

    def _signal_children(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.process is not None:
                child.process.send_signal(number)

    # --- children --------------------------------------------------------------------------

    def _start(self, child: _Child) -> None:
        child.started = time.monotonic()
        try:
            child.process = subprocess.Popen(
                child.command,
                stdin=subprocess.DEVNULL,
                env=os.environ | {VARIABLE: f"{os.getpid()}:{self._error_token}"},
                pass_fds=(self._error_token,),
                # Ctrl-C at a terminal reaches the parent alone, which passes it on once.
                process_group=0,
            )
        except OSError as error:  # such as too many processes
            self._schedule_restart(child, error=str(error))

    def _reap(self) -> None:
        for child in list(self._children):
            code = None if child.process is None else child.process.poll()
            if code is not None:
                child.process = None
                self._handle_exit(child, code)

    def _handle_exit(self, child: _Child, code: int) -> None:
        if not self._stop_signals and code != USAGE:
            self._schedule_restart(child, **_cause(code))
            return
        self._children.remove(child)
        code = 0 if code in _STOPPED else code
        self._exit_codes.append(code)
        if code:
            event = "a worker process ended with an error"
            self._log.write("error", event, worker=child.name, **_cause(code))

    def _schedule_restart(self, child: _Child, **cause: Any) -> None:
        now = time.monotonic()
        child.deaths = 1 if now - child.started > _STABLE_SECONDS else child.deaths + 1
        delay = round(_RESTART_DELAYS.delay(child.deaths, child.name), 2)
        child.restart_at = now + delay
        event = "a worker process died and is restarted"
        self._log.write("error", event, worker=child.name, **cause, delay=delay)

    def _seconds_to_restart(self) -> float | None:
        times = [child.restart_at for child in self._children if child.process is None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _restart_due(self) -> None:
        for child in self._children:
            if child.process is None and child.restart_at <= time.monotonic():
                self._put_error_token()
                self._start(child)

    def _put_error_token(self) -> None:
        """Let one child report a mistake in the application or the options; see FleetMember."""
        with suppress(BlockingIOError):  # a child has taken it
            os.read(self._error_token, 1)
        os.write(self._token_writer, b"1")


def _cause(code: int) -> dict[str, Any]:
    if code >= 0:
        return {"exit_code": code}
    try:
        return {"signal": signal.Signals(-code).name}
    except ValueError:
        return {"signal": -code}
