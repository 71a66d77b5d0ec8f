"""Makes sure the servers that tests talk to are there, or says in one line what is not run.

A server that answers on its usual local port is used. Otherwise, as root on Debian, its package
is installed and a server started; else the tests that need it are skipped.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

POSTGRES = ("127.0.0.1", 5432)


def answers(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=1):
            return True
    except OSError:
        return False


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")


def install_postgres() -> None:
    if not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        print("installing PostgreSQL from Debian's packages …", flush=True)
        run("apt-get", "update", "-qq")
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", "postgresql")


def start_postgres() -> None:
    """A cluster for tests in a scratch folder, trusting connections from this machine."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
    data = Path("/var/tmp/umbel-test-postgres")
    as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    if not data.exists():
        data.mkdir()
        shutil.chown(data, "postgres", "postgres")
        run(*as_postgres, f"{binaries}/initdb", "-D", f"{data}", "-A", "trust", "-U", "postgres")
    options = f"-c listen_addresses={POSTGRES[0]} -p {POSTGRES[1]} -k {data}"
    control = [f"{binaries}/pg_ctl", "-D", f"{data}", "-o", options, "-l", f"{data}/log", "-w"]
    run(*as_postgres, *control, "start")
    run(f"{binaries}/createdb", "-h", POSTGRES[0], "-U", "postgres", "test")


def main() -> None:
    if answers(POSTGRES):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print("not run: tests on PostgreSQL (nothing on 127.0.0.1:5432, and not root to install)")
        return
    try:
        install_postgres()
        if not answers(POSTGRES):  # the package may have started one
            start_postgres()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"not run: tests on PostgreSQL ({error})", file=sys.stderr)


if __name__ == "__main__":
    main()
