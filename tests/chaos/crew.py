"""The processes of a run: workers of two releases with clocks of their own, and publishers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from chaos.diary import CLOCK_OFFSET, Diary, clock_offset

HERE = Path(__file__).parent
LEASE = 3.0
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
"""Debian's library that gives a process a wrong clock; None where it is not installed."""


@dataclass
class Member:
    """One process, and the one that takes its place when it ends."""

    name: str
    publishes: bool = False
    release: str = "old"
    process: subprocess.Popen[bytes] | None = None
    frozen: bool = False
    leaving: bool = False
    """Told to stop; it is started again when it has."""
    lives: int = 0
    died: list[int] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Crew:
    """Starts, signals and reaps them, and writes down each of these things, and each end.

    An end is written down when it happens, by a thread for each process: whoever strikes is busy
    for longer than a lease where a server is slow to start, and others have a dead one's jobs then.
    """

    def __init__(
        self,
        folder: Path,
        diary: Diary,
        places: list[dict[str, str]],
        *,
        one_clock: bool,
        plant: str,
        poison: bool,
        seed: int,
    ) -> None:
        self.folder = folder
        self.workers = [Member(f"worker-{index}") for index in range(4)]
        self.publishers = [Member(f"publisher-{index}", publishes=True) for index in range(3)]
        self._diary = diary
        self._places = places
        self.one_clock = one_clock
        """Whether one clock is wrong for all of them, as on one machine."""
        self._plant = plant
        self._poison = poison
        self._seed = seed
        self._log = (folder / "processes.log").open("ab")
        self._watchers: list[threading.Thread] = []

    @property
    def everybody(self) -> list[Member]:
        return [*self.workers, *self.publishers]

    def pids(self) -> list[int]:
        return [member.pid for member in self.everybody if member.alive]

    def start(self, member: Member) -> None:
        command = self._publisher(member) if member.publishes else self._worker(member)
        member.process = subprocess.Popen(
            command,
            env=self._environment(member),
            stdout=self._log,
            stderr=self._log,
            cwd=self.folder,
        )
        member.frozen = member.leaving = False
        member.lives += 1
        self._diary.write("begun", pid=member.pid, note=member.name, kind=member.release)
        watcher = threading.Thread(target=self._see_end, args=(member.name, member.process))
        self._watchers.append(watcher)
        watcher.start()

    def kill(self, member: Member) -> None:
        """SIGKILL: no goodbye."""
        self._diary.write("killed", pid=member.pid, note=member.name)
        self.signal(member, signal.SIGKILL)

    def stop(self, member: Member) -> None:
        """SIGTERM: it may finish."""
        self._diary.write("told to stop", pid=member.pid, note=member.name)
        member.leaving = True
        self.signal(member, signal.SIGTERM)

    def freeze(self, member: Member) -> None:
        self._diary.write("frozen", pid=member.pid, note=member.name)
        member.frozen = True
        self.signal(member, signal.SIGSTOP)

    def wake(self, member: Member) -> None:
        self.signal(member, signal.SIGCONT)
        self._diary.write("woken", pid=member.pid, note=member.name)
        member.frozen = False

    def signal(self, member: Member, number: signal.Signals) -> None:
        if member.alive and member.process is not None:
            member.process.send_signal(number)

    def set_clock(self, member: Member, shift: float) -> None:
        """Its clock jumps, this moment; on one machine everybody's."""
        self._clock(member).write_text(f"{shift:+.0f}")
        whose = "all" if self.one_clock else member.name
        self._diary.write("clock", pid=member.pid, note=f"{whose} {shift:+.0f} s")

    def reap(self, *, renew: bool = True) -> list[Member]:
        """Those that have ended, started again if wished."""
        ended = [m for m in self.everybody if m.process is not None and not m.alive]
        for member in ended:
            member.process = None
            if renew:
                self.start(member)
        return ended

    def end(self) -> None:
        for member in self.everybody:
            if member.process is not None:
                member.process.kill()
        for watcher in self._watchers:
            watcher.join()
        self._log.close()

    def _see_end(self, name: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        self._diary.write("gone", pid=process.pid, note=f"{name} {code}")

    def _worker(self, member: Member) -> list[str]:
        umbel = [sys.executable, "-m", "umbel", "-A", "release:app", "worker"]
        serves = ["--name", member.name, "--queues", "default,other", "--log-format", "json"]
        return [*umbel, *serves, "--lease", str(LEASE), "--io", "20", "--cpu", "4", "--grace", "2"]

    def _publisher(self, member: Member) -> list[str]:
        seed = f"{self._seed}-{member.name}-{member.lives}"
        # One that kills whoever runs it. Its fellows come back minutes apart: none in a short run.
        poison = ["--poison", "20"] if self._poison and seed.endswith("-0-0") else []
        return [sys.executable, "-m", "chaos.publishing", "--seed", seed, *poison]

    def _clock(self, member: Member) -> Path:
        return self.folder / f"{'all' if self.one_clock else member.name}.clock"

    def _environment(self, member: Member) -> dict[str, str]:
        release = "new" if member.publishes else member.release
        path = [HERE / release, HERE / "faketime", HERE.parent]
        which = int(member.name[-1]) % len(self._places) if member.publishes else 0
        environment = {
            **os.environ,
            **self._places[which],
            "UMBEL_BACKLOG": "none",  # what is in memory dies with its process, as it may
            "PYTHONPATH": os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")]),
            "CHAOS_DIARY": str(self.folder / "diaries"),
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
