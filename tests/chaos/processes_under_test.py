"""The processes of a run: publishers, and workers of two releases with separate clocks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from chaos.event_log import CLOCK_OFFSET, EventLog, clock_offset

HERE = Path(__file__).parent
LEASE = 3.0
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
"""Debian's library that gives a process a wrong clock; None where it is not installed."""


@dataclass
class ManagedProcess:
    """One process, and its replacement after it ends."""

    name: str
    publishes: bool = False
    release: str = "old"
    process: subprocess.Popen[bytes] | None = None
    frozen: bool = False
    leaving: bool = False
    """It was asked to stop, and is started again after that."""
    starts: int = 0
    died: list[int] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


class ProcessGroup:
    """Starts, signals and reaps the processes, and logs each of these actions and each exit.

    A thread for each process logs its exit immediately. The thread that injects faults may be busy
    for longer than a lease, when a server is slow to start, and by then other workers have claimed
    the jobs of a dead one.
    """

    def __init__(
        self,
        folder: Path,
        event_log: EventLog,
        environments: list[dict[str, str]],
        *,
        one_clock: bool,
        plant: str,
        poison: bool,
        seed: int,
    ) -> None:
        self.folder = folder
        self.workers = [ManagedProcess(f"worker-{index}") for index in range(4)]
        self.publishers = [
            ManagedProcess(f"publisher-{index}", publishes=True) for index in range(3)
        ]
        self._event_log = event_log
        self._environments = environments
        self.one_clock = one_clock
        """Whether all processes share one wrong clock, as on one machine."""
        self._plant = plant
        self._poison = poison
        self._seed = seed
        self._log = (folder / "processes.log").open("ab")
        self._watchers: list[threading.Thread] = []

    @property
    def members(self) -> list[ManagedProcess]:
        return [*self.workers, *self.publishers]

    def pids(self) -> list[int]:
        return [member.pid for member in self.members if member.alive]

    def start(self, member: ManagedProcess) -> None:
        command = self._publisher(member) if member.publishes else self._worker(member)
        member.process = subprocess.Popen(
            command,
            env=self._environment(member),
            stdout=self._log,
            stderr=self._log,
            cwd=self.folder,
        )
        member.frozen = member.leaving = False
        member.starts += 1
        self._event_log.write("begun", pid=member.pid, note=member.name, kind=member.release)
        watcher = threading.Thread(target=self._log_exit, args=(member.name, member.process))
        self._watchers.append(watcher)
        watcher.start()

    def kill(self, member: ManagedProcess) -> None:
        """Send SIGKILL."""
        self._event_log.write("killed", pid=member.pid, note=member.name)
        self.signal(member, signal.SIGKILL)

    def stop(self, member: ManagedProcess) -> None:
        """Send SIGTERM: the process may finish its work."""
        self._event_log.write("stop requested", pid=member.pid, note=member.name)
        member.leaving = True
        self.signal(member, signal.SIGTERM)

    def freeze(self, member: ManagedProcess) -> None:
        self._event_log.write("frozen", pid=member.pid, note=member.name)
        member.frozen = True
        self.signal(member, signal.SIGSTOP)

    def wake(self, member: ManagedProcess) -> None:
        self.signal(member, signal.SIGCONT)
        self._event_log.write("woken", pid=member.pid, note=member.name)
        member.frozen = False

    def signal(self, member: ManagedProcess, number: signal.Signals) -> None:
        if member.alive and member.process is not None:
            member.process.send_signal(number)

    def set_clock(self, member: ManagedProcess, shift: float) -> None:
        """Set its clock; on one machine, the clock of all processes."""
        self._clock(member).write_text(f"{shift:+.0f}")
        whose = "all" if self.one_clock else member.name
        self._event_log.write("clock", pid=member.pid, note=f"{whose} {shift:+.0f} s")

    def reap(self, *, renew: bool = True) -> list[ManagedProcess]:
        """Return the processes that have ended. With ``renew``, start them again."""
        ended = [m for m in self.members if m.process is not None and not m.alive]
        for member in ended:
            member.process = None
            if renew:
                self.start(member)
        return ended

    def end(self) -> None:
        for member in self.members:
            if member.process is not None:
                member.process.kill()
        for watcher in self._watchers:
            watcher.join()
        self._log.close()

    def _log_exit(self, name: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        self._event_log.write("gone", pid=process.pid, note=f"{name} {code}")

    def _worker(self, member: ManagedProcess) -> list[str]:
        umbel = [sys.executable, "-m", "umbel", "-A", "release:app", "worker"]
        serves = ["--name", member.name, "--queues", "default,other", "--log-format", "json"]
        return [*umbel, *serves, "--lease", str(LEASE), "--io", "20", "--cpu", "4", "--grace", "2"]

    def _publisher(self, member: ManagedProcess) -> list[str]:
        seed = f"{self._seed}-{member.name}-{member.starts}"
        # Poison kills its worker. The jobs that ran beside it are retried minutes later, which is
        # too late for a short run.
        poison = ["--poison", "20"] if self._poison and seed.endswith("-0-0") else []
        return [sys.executable, "-m", "chaos.publisher_process", "--seed", seed, *poison]

    def _clock(self, member: ManagedProcess) -> Path:
        return self.folder / f"{'all' if self.one_clock else member.name}.clock"

    def _environment(self, member: ManagedProcess) -> dict[str, str]:
        release = "new" if member.publishes else member.release
        path = [HERE / release, HERE / "faketime", HERE.parent]
        which = int(member.name[-1]) % len(self._environments) if member.publishes else 0
        environment = {
            **os.environ,
            **self._environments[which],
            "UMBEL_BACKLOG": "none",  # jobs in memory are lost with their process, as documented
            "PYTHONPATH": os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")]),
            "CHAOS_EVENT_LOG": str(self.folder / "events"),
            CLOCK_OFFSET: str(clock_offset()),
        }
        if FAKETIME is not None and (self.one_clock or not member.publishes):
            clock = self._clock(member)
            if not clock.exists():
                clock.write_text("+0")
            environment |= {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(clock),
                "FAKETIME_CACHE_DURATION": "1",
                "DONT_FAKE_MONOTONIC": "1",
                "NO_FAKE_STAT": "1",
            }
        if self._plant and not member.publishes:
            environment["CHAOS_PLANT"] = self._plant
        return environment
