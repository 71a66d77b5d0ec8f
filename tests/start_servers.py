"""Makes sure that what tests talk to is there, or says in one line what is not run.

A server that answers on its usual local port is used. Otherwise, as root on Debian, its package
is installed and a server started; else the tests that need it are skipped.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
SCRATCH = Path("/var/tmp/umbel-test-servers")
PATIENCE = 60.0


def answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")


def spawn(*command: str) -> None:
    """Start something that goes on after this program."""
    quiet = subprocess.DEVNULL
    subprocess.Popen(command, stdout=quiet, stderr=quiet, cwd="/", start_new_session=True)


def start_postgres() -> None:
    """A cluster for tests in a scratch folder, trusting connections from this machine."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
    data = SCRATCH / "postgres"
    as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    if not data.exists():
        data.mkdir()
        shutil.chown(data, "postgres", "postgres")
        run(*as_postgres, f"{binaries}/initdb", "-D", f"{data}", "-A", "trust", "-U", "postgres")
    options = f"-c listen_addresses={HOST} -p 5432 -k {data}"
    control = [f"{binaries}/pg_ctl", "-D", f"{data}", "-o", options, "-l", f"{data}/log", "-w"]
    run(*as_postgres, *control, "start")
    run(f"{binaries}/createdb", "-h", HOST, "-U", "postgres", "test")


def start_redis() -> None:
    spawn("redis-server", "--bind", HOST, "--port", "6379", "--save", "", "--dir", f"{SCRATCH}")


def start_rabbitmq() -> None:
    spawn("rabbitmq-server")


def start_nats() -> None:
    spawn("nats-server", "-a", HOST, "-p", "4222", "-js", "-sd", f"{SCRATCH}/nats")


@dataclass(frozen=True)
class Server:
    """One server: its port, its package, and how it is started when the package has not."""

    name: str
    port: int
    package: str
    program: str
    start: Callable[[], None]

    def provide(self) -> None:
        if answers(self.port):
            return
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            print(f"not run: tests on {self.name} (nothing on {HOST}:{self.port}, and not root)")
            return
        try:
            self._install()
            if not answers(self.port):  # the package may have started one
                self.start()
            self._await()
        except (OSError, subprocess.CalledProcessError, TimeoutError) as error:
            print(f"not run: tests on {self.name} ({error})", file=sys.stderr)

    def _install(self) -> None:
        if shutil.which(self.program) is None and not list(Path("/usr/lib").glob(self.program)):
            print(f"installing {self.name} from Debian's packages …", flush=True)
            os.environ["DEBIAN_FRONTEND"] = "noninteractive"
            run("apt-get", "update", "-qq")
            run("apt-get", "install", "-y", "-qq", "--no-install-recommends", self.package)
        SCRATCH.mkdir(exist_ok=True)
        SCRATCH.chmod(0o755)

    def _await(self) -> None:
        until = time.monotonic() + PATIENCE
        while not answers(self.port):
            if time.monotonic() > until:
                raise TimeoutError(f"it did not answer on port {self.port}")
            time.sleep(0.2)


SERVERS = (
    Server("PostgreSQL", 5432, "postgresql", "postgresql/*/bin/initdb", start_postgres),
    Server("Redis", 6379, "redis-server", "redis-server", start_redis),
    Server("RabbitMQ", 5672, "rabbitmq-server", "rabbitmq-server", start_rabbitmq),
    Server("NATS", 4222, "nats-server", "nats-server", start_nats),
)


def provide_program(program: str, purpose: str, *packages: str) -> None:
    """Install a program from Debian's packages, or say which tests are not run without it."""
    if shutil.which(program) is not None:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"not run: {purpose} (there is no {program}, and not root)")
        return
    try:
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"not run: {purpose} ({error})", file=sys.stderr)


STAYS = "umbel-tests-stay"


def keep_a_stream() -> None:
    """One stream that no test deletes.

    With the last of all streams a NATS server removes their folder, and fails to make another one
    just then; tests in several processes make and delete theirs all the time.
    """
    import nats

    async def make() -> None:
        client = await nats.connect(f"nats://{HOST}:4222", allow_reconnect=False, connect_timeout=2)
        await client.jetstream().add_stream(name=STAYS, subjects=[STAYS])
        await client.close()

    if answers(4222):
        asyncio.run(make())


NODE_MODULES = SCRATCH / "node" / "node_modules"
NODE_TESTS = "tests of senders in JavaScript, of accessibility, and of types with pyright"
NODE_PACKAGES = {
    "rhea": "3.0.5",
    "amqplib": "2.3.1",
    "axe-core": "4.14.0",
    "pyright": "1.1.414",
}


def provide_node_packages() -> None:
    """Clients for ``examples/foreign``, and what checks pages and types."""
    if all((NODE_MODULES / name).exists() for name in NODE_PACKAGES):
        return
    if shutil.which("npm") is None:
        print(
            "not run: tests of senders in JavaScript, accessibility and pyright (there is no npm)"
        )
        return
    wanted = [f"{name}@{version}" for name, version in NODE_PACKAGES.items()]
    try:
        NODE_MODULES.mkdir(parents=True, exist_ok=True)
        run("npm", "install", "--silent", "--prefix", f"{NODE_MODULES.parent}", *wanted)
    except (OSError, subprocess.CalledProcessError) as error:
        print(
            f"not run: tests of senders in JavaScript, accessibility and pyright ({error})",
            file=sys.stderr,
        )


if __name__ == "__main__":
    for server in SERVERS:
        server.provide()
    keep_a_stream()
    provide_program("faketime", "processes with wrong clocks", "faketime")
    provide_program("chromium", "the dashboard in a browser", "chromium", "fonts-dejavu-core")
    provide_program("tmux", "umbel top in tmux", "tmux")
    provide_node_packages()
