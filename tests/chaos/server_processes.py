"""Private servers of a run, which can be started, stopped, killed and frozen."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from servers import PrivatePostgres, find_binaries, free_port

HOST = "127.0.0.1"
START_TIMEOUT_SECONDS = 60.0
"""Seconds that a server has to start, while workers keep the machine busy."""
_RABBITMQ = Path("/usr/lib/rabbitmq/bin")


class NotAvailable(Exception):
    """This server cannot be run on this machine; the text says why."""


class ServerProcess(Protocol):
    """A server that faults can be injected into."""

    port: int
    stop_modes: Sequence[str]
    """How it may be stopped."""

    @property
    def unavailable(self) -> bool:
        """Whether it is stopped or frozen."""

    def stop(self, stop_mode: str) -> None:
        """Stop the server; it is stopped when this returns."""

    def launch(self) -> None:
        """Begin to start the server, unless it is running. Does not wait."""

    def start(self) -> None:
        """Start the server; it answers when this returns."""


class Postgres:
    """A PostgreSQL cluster in a folder. It cannot be frozen: it has many processes."""

    stop_modes: Sequence[str] = ("fast", "immediate")

    def __init__(self, folder: Path, settings: str) -> None:
        binaries = find_binaries()
        if binaries is None:
            raise NotAvailable("not run: no PostgreSQL server programs are installed here")
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        self._server = PrivatePostgres(folder, binaries)
        self.port = self._server.port
        self.url = self._server.url
        with (folder / "data" / "postgresql.conf").open("a") as conf:
            conf.write(settings)

    @property
    def unavailable(self) -> bool:
        try:
            self._server.run_program("pg_ctl", "-D", str(self._server.folder / "data"), "status")
        except RuntimeError:
            return True
        return False

    def stop(self, stop_mode: str) -> None:
        self._server.stop(stop_mode)

    def launch(self) -> None:
        if self.unavailable:
            self._server.start()

    start = launch


class Program(ABC):
    """A server that is one process with children, in a separate session."""

    stop_modes: Sequence[str] = ("killed",)

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.frozen = False
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def unavailable(self) -> bool:
        return self.frozen or not self.answers()

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        if not self.runs:
            with (self._folder / "output").open("ab") as output:
                self._process = subprocess.Popen(
                    self.command(),
                    env=self.environment(),
                    stdout=output,
                    stderr=output,
                    cwd="/",
                    start_new_session=True,
                )

    def start(self) -> None:
        self.wake()
        until = time.monotonic() + START_TIMEOUT_SECONDS
        self.launch()
        while not self.answers():
            if time.monotonic() > until or not self.runs:
                said = (self._folder / "output").read_text(errors="replace")[-1000:]
                raise NotAvailable(f"not run: {self.command()[0]} does not start: {said}")
            time.sleep(0.05)

    def stop(self, stop_mode: str) -> None:
        self._signal(signal.SIGKILL)
        self.frozen = False
        if self._process is not None:
            self._process.wait()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)
        self.frozen = True

    def wake(self) -> None:
        self._signal(signal.SIGCONT)
        self.frozen = False

    def answers(self) -> bool:
        """Return whether it accepts connections. A frozen server does, too."""
        with suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
            return self.runs
        return False

    @abstractmethod
    def command(self) -> list[str]:
        """What starts it."""

    def environment(self) -> dict[str, str]:
        return {**os.environ}

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.runs:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


class Redis(Program):
    """A Redis server that writes each change to its log before it confirms it.

    The log is never rewritten.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._program = _program("redis-server")

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def log(self) -> Path:
        """The folder of the append-only file."""
        return self._folder / "appendonlydir"

    def answers(self) -> bool:
        """Return whether it answers PING: while it loads its log, it only accepts connections."""
        with (
            suppress(OSError),
            socket.create_connection((HOST, self.port), timeout=1) as connection,
        ):
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
        return False

    def command(self) -> list[str]:
        options = {
            "bind": HOST,
            "port": str(self.port),
            "dir": str(self._folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "auto-aof-rewrite-percentage": "0",
        }
        return [self._program, *(part for k, v in options.items() for part in (f"--{k}", v))]


class Nats(Program):
    """A NATS server with JetStream, its streams in files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._program = _program("nats-server")
        said = subprocess.run([self._program, "--version"], capture_output=True, check=True).stdout
        version = [int(number) for number in re.findall(rb"\d+", said)[:2]]
        # Older servers do not sync to disk. That is enough when only processes are killed.
        sync = "sync_interval: always" if version >= [2, 10] else ""
        store = f'jetstream {{ store_dir: "{folder}/store"\n{sync} }}'
        (folder / "nats.conf").write_text(f'listen: "{HOST}:{self.port}"\n{store}\n')

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    def command(self) -> list[str]:
        return [self._program, "-c", str(self._folder / "nats.conf")]


class Rabbit(Program):
    """A RabbitMQ node, as packaged by Debian. Starting one under its own user needs root."""

    def __init__(self, folder: Path, *plugins: str) -> None:
        super().__init__(folder)
        here = os.geteuid() == 0 and shutil.which("setpriv")
        if not here or not (_RABBITMQ / "rabbitmq-server").exists():
            raise NotAvailable("not run: it takes root and Debian's RabbitMQ to start a node")
        self._name = f"umbel-chaos-{self.port}@localhost"
        self._distribution = free_port()
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.local = {HOST}:{self.port}\ndistribution.listener.interface = {HOST}\n"
        )
        (folder / "plugins").write_text(f"[{', '.join(plugins)}].")
        shutil.chown(folder, "rabbitmq", "rabbitmq")

    def answers(self) -> bool:
        """Return whether it speaks AMQP: while it starts, it only accepts connections."""
        with (
            suppress(OSError),
            socket.create_connection((HOST, self.port), timeout=1) as connection,
        ):
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return len(connection.recv(16)) > 8
        return False

    def command(self) -> list[str]:
        who = ["--reuid=rabbitmq", "--regid=rabbitmq", "--clear-groups"]
        return ["setpriv", *who, str(_RABBITMQ / "rabbitmq-server")]

    def environment(self) -> dict[str, str]:
        folder = str(self._folder)
        return {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "RABBITMQ_NODENAME": self._name,
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
        }


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise NotAvailable(f"not run: there is no {name} here")
    return found
