"""A RabbitMQ node that a test module starts itself."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from umbel.backends import Lane, Transport
from umbel.backends.rabbitmq.address import RabbitAddress
from umbel.errors import Unavailable
from umbel.messages import JSON, Body, Envelope, fresh_id

BINARIES = Path("/usr/lib/rabbitmq/bin")
START_SECONDS = 30.0
"""Seconds for a node to start; it usually takes five."""
CONFIGURATION = """
listeners.tcp.local = 127.0.0.1:{port}
listeners.ssl.local = 127.0.0.1:{tls_port}
ssl_options.certfile = {folder}/certificate.pem
ssl_options.keyfile = {folder}/key.pem
distribution.listener.interface = 127.0.0.1
"""
CERTIFICATE = """
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -batch
-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1
"""
TOOLS = shutil.which("setpriv") and shutil.which("openssl")


class RabbitNode:
    """A server in a temporary folder, and the commands of its operator."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"umbel-test-{os.getpid()}@localhost"
        self.port, self.tls_port, self._distribution = free_port(), free_port(), free_port()
        self.certificate = folder / "certificate.pem"

    @property
    def address(self) -> RabbitAddress:
        return RabbitAddress(f"amqp://guest:guest@127.0.0.1:{self.port}/?connect_timeout=2")

    def start(self) -> subprocess.Popen[bytes]:
        key = self._folder / "key.pem"
        files = ["-out", str(self.certificate), "-keyout", str(key)]
        subprocess.run([*shlex.split(CERTIFICATE), *files], check=True, stderr=subprocess.DEVNULL)
        text = CONFIGURATION.format(port=self.port, tls_port=self.tls_port, folder=self._folder)
        (self._folder / "rabbitmq.conf").write_text(text)
        (self._folder / "plugins").touch()
        for path in (self._folder, key):
            shutil.chown(path, "rabbitmq", "rabbitmq")
        process = subprocess.Popen(
            self._as_rabbitmq("rabbitmq-server"),
            env=self._environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + START_SECONDS
        while not answers(self.port):
            if time.monotonic() > until or process.poll() is not None:
                stop(process)
                pytest.skip("not run: RabbitMQ's alarms and restarts; no node would start")
            time.sleep(0.1)
        return process

    def control(self, *command: str) -> None:
        subprocess.run(
            [*self._as_rabbitmq("rabbitmqctl"), "-q", *command],
            env=self._environment(),
            check=True,
            stdout=subprocess.DEVNULL,
        )

    async def acontrol(self, *command: str) -> None:
        await asyncio.to_thread(self.control, *command)

    def _as_rabbitmq(self, program: str) -> list[str]:
        user = ["--reuid=rabbitmq", "--regid=rabbitmq", "--clear-groups"]
        return ["setpriv", *user, str(BINARIES / program)]

    def _environment(self) -> dict[str, str]:
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
        }


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def envelope() -> Envelope:
    return Envelope(id=fresh_id(), subject="t", body=Body(JSON, b"{}"), kind="io")


async def send_until_accepted(transport: Transport, sent: Envelope) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                return await transport.send([sent])
            except Unavailable:
                await asyncio.sleep(0.05)


async def receive_until_found(transport: Transport, wanted: str) -> None:
    found: list[str] = []
    async with asyncio.timeout(30):
        while wanted not in found:
            try:
                new = await transport.receive({IO: 10}, 5)
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                await transport.accept(new)
                found += [one.id for one in new]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def skip_without_node() -> None:
    """Skip the module if this machine cannot start a node."""
    if os.geteuid() != 0 or not (BINARIES / "rabbitmq-server").exists() or not TOOLS:
        pytest.skip(
            "not run: RabbitMQ's alarms, restarts and TLS; it takes root, openssl and Debian's"
            " RabbitMQ to start a node",
            allow_module_level=True,
        )


IO = Lane("default", "io")
