"""A private PostgreSQL server that a test may stop, kill and restart."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def find_binaries() -> Path | None:
    found = shutil.which("pg_ctl")
    if found:
        return Path(found).parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return installed[-1] if installed else None


class PrivatePostgres:
    """One cluster in a temporary folder, on a free port."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._binaries = binaries
        self.run_program(
            "initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "postgres", "-N"
        )

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder}"
        log = str(self.folder / "log")
        self.run_program(
            "pg_ctl", "-D", str(self.folder / "data"), "-o", options, "-l", log, "-w", "start"
        )

    def stop(self, mode: str = "fast") -> None:
        self.run_program("pg_ctl", "-D", str(self.folder / "data"), "-m", mode, "-w", "stop")

    def run_program(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        if os.geteuid() == 0:  # the server refuses to run as root
            command = [
                "setpriv",
                "--reuid=postgres",
                "--regid=postgres",
                "--clear-groups",
                *command,
            ]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stdout}{done.stderr}")


@contextmanager
def private_postgres() -> Iterator[PrivatePostgres]:
    """Run a server for the duration of the block."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("not run: no PostgreSQL server programs are installed here")
    folder = Path(tempfile.mkdtemp(prefix="umbel-pg-"))
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    server = PrivatePostgres(folder, binaries)
    try:
        server.start()
        yield server
    finally:
        with suppress(RuntimeError):  # a test may have left it stopped
            server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)
