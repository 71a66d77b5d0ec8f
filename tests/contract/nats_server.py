"""A NATS server that a test starts itself."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from local_servers import HOST

BINARY = shutil.which("nats-server")


class NatsServer:
    """A server process with a port and a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as found:
            found.bind((HOST, 0))
            self.port = int(found.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self, *options: str, jetstream: bool = True) -> None:
        store = ["-js", "-sd", str(self.folder / "store")] if jetstream else []
        self._process = subprocess.Popen(
            [str(BINARY), "-a", HOST, "-p", str(self.port), *store, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 10
        while time.monotonic() < until:
            try:
                socket.create_connection((HOST, self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        raise AssertionError("nats-server did not start")

    def kill(self) -> None:
        """Kill the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def freeze(self) -> None:
        """Stop the process. It does not answer, and its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(
            os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT
        )  # until all threads have stopped

    def thaw(self) -> None:
        """Let a frozen process go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def write_file(self, name: str, text: str) -> str:
        """Write a file and return its path."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)
