"""Real worker processes, started, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
_GIVEN = os.environ.get("PYTHONPATH", "")


class Workers:
    """Worker processes on one URL."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *options: str,
        application: str = "tasks_under_test",
        path: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.traces = folder / "traces"
        self.traces.mkdir(exist_ok=True)
        self.log = (folder / "workers.log").open("ab")
        broker, _, store = url.partition("|")
        self._environment = {
            **os.environ,
            "UMBEL_BROKER": broker,
            **({"UMBEL_STORE": store} if store else {}),
            "UMBEL_BACKLOG": "none",
            "TRACES": str(self.traces),
            "UMBEL_NAMESPACE": "scenario",
            "PYTHONPATH": os.pathsep.join(map(str, filter(None, [HERE, *path, _GIVEN]))),
            **(env or {}),
        }
        self._application = application
        self._options = options
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, index: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "umbel", "-A", f"{self._application}:app", "worker"]
        process = subprocess.Popen(
            [*command, "--name", f"worker-{index}", *self._options],
            env=self._environment,
            stdout=self.log,
            stderr=self.log,
        )
        self._processes[index] = process
        return process

    def process(self, index: int) -> subprocess.Popen[bytes]:
        return self._processes[index]

    def kill(self, index: int) -> None:
        """Send SIGKILL and wait for the exit."""
        self._processes[index].kill()
        self._processes[index].wait()

    def signal(self, index: int, number: signal.Signals) -> None:
        self._processes[index].send_signal(number)

    def has_ended(self, index: int) -> bool:
        """Return whether a worker has exited by itself, for example because it found no store."""
        return self._processes[index].poll() is not None

    def started(self) -> int:
        """Return how many times a worker has reported that it has started."""
        return self.output().count("worker started")

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self.log.close()

    def output(self) -> str:
        return Path(self.log.name).read_text(errors="replace")


def until(
    condition: Callable[[], bool], what: str, seconds: float = 120, every: float = 0.05
) -> None:
    """Wait until the condition is true. Fail if it takes so long that something must hang."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}")
        time.sleep(every)
