"""A test stand: one system, set up, with callers and workers to start."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from string import Template
from typing import Any

from benchmarks import meters, probe, processes
from benchmarks.environments import ROOT, binaries
from benchmarks.meters import Reading
from benchmarks.places import Place
from benchmarks.processes import Caller, Crew, Failed, last_words
from benchmarks.systems import Kind, System

_PATIENCE = 60.0
_LOOK = 0.01
_SHARED = Path("/dev/shm")


class Stand:
    """One system in its environment, in its place."""

    def __init__(self, system: System, place: Place, folder: Path, source: Path) -> None:
        self.system, self.place = system, place
        self._source = source
        memory = _SHARED if _SHARED.is_dir() else None
        self._notes = Path(tempfile.mkdtemp(prefix="umbel-bench-", dir=memory))
        name = "-".join(re.findall(r"\w+", system.name.lower()))
        self._caller_log = folder / f"{name}-caller.log"
        self._worker_log = folder / f"{name}-worker.log"
        self._kind: Kind = "async"
        self.settings: dict[str, str] = {}
        """Variables that its processes get besides."""

    def fresh(self, kind: Kind = "async") -> None:
        """Begin anew: empty tables, nothing noted."""
        self._kind = kind if kind in self.system.kinds else self.system.kinds[0]
        self.settings.clear()
        for file in self._notes.iterdir():
            file.unlink()
        install = self._client("install")
        self.place.fresh(lambda: processes.run(install, self._environment(), self._caller_log))

    def close(self) -> None:
        """Leave no notes behind."""
        shutil.rmtree(self._notes, ignore_errors=True)

    def caller(self, action: str, **given: Any) -> AbstractContextManager[Caller]:
        """A caller for one action; it parts at the end."""
        command = self._client(action, json.dumps(given))
        return processes.caller(command, self._environment(), self._caller_log)

    def workers(self, number: int = 1) -> AbstractContextManager[Crew]:
        """Workers of so many processes, ended at the end whatever happens."""
        filled = {"processes": number, "url": self.place.url}
        words = [word.format(**filled) for word in self.system.worker]
        commands = [self._command(words)] * (1 if self.system.several else number)
        return processes.crew(commands, self._environment(), self._worker_log)

    def fill(self, jobs: int, seconds: float = _PATIENCE) -> int:
        """Put about so many jobs into the queue; how many there are then."""
        with self.caller("fill", jobs=jobs, seconds=seconds) as caller:
            result = caller.go()
        return int(result["jobs"] + result["warm"])

    def await_starts(self, crew: Crew, jobs: int, seconds: float = _PATIENCE) -> int:
        """Wait until so many jobs have started, or the time is over; how many there are."""
        until = time.monotonic() + seconds
        while (seen := self.seen()) < jobs and time.monotonic() < until:
            if crew.ended():
                raise Failed(last_words(self._worker_log))
            time.sleep(_LOOK)
        return seen

    def seen(self) -> int:
        """How many jobs have started."""
        return probe.count(self._notes)

    def starts(self) -> list[tuple[int, int]]:
        """When each job was sent and started."""
        return probe.starts(self._notes)

    def unfinished(self) -> int | None:
        """How many jobs are not recorded as finished; None if nothing records it."""
        if self.system.unfinished is None:
            return None
        return self.place.ask(Template(self.system.unfinished).substitute(name=self.place.name))

    def read(self, crew: Crew | None = None) -> Reading:
        """Every meter that can be read while all are connected."""
        return Reading(
            workers=meters.processor_time(crew.processes()) if crew else 0.0,
            server=self.place.server_time(),
            log=self.place.written(),
        )

    def memory(self, crew: Crew) -> float:
        """MiB that the workers have now."""
        return meters.resident(crew.processes()) / 2**20

    def _client(self, action: str, *given: str) -> list[str]:
        return self._command(
            ["python", "-m", "benchmarks.client", self.system.peer, action, *given]
        )

    def _command(self, words: list[str]) -> list[str]:
        return [str(binaries(self.system.peer) / words[0]), *words[1:]]

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{binaries(self.system.peer)}:{os.environ.get('PATH', '')}",
            "HOME": os.environ.get("HOME", "/"),
            "LANG": "C.UTF-8",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{self._source}",
            **self.place.settings,
            "BENCH_KIND": self._kind,
            "BENCH_VARIANT": self.system.variant,
            "BENCH_PROBE": str(self._notes),
            **self.settings,
        }
