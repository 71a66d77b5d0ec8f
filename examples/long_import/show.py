"""Start a worker and an import, kill the worker several times, and count the rows at the end.

python examples/long_import/show.py --rows 1000 --kills 5
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from imports import LOG, app, import_rows

from umbel import Handle, Unique

HERE = str(Path(__file__).parent)
PAGE = 10


def start_worker() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "umbel", "-A", "imports:app", "worker"]
    options = ["--lease", "2", "--log-level", "error"]
    path = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen([*command, *options], env={**os.environ, "PYTHONPATH": path})


def executed() -> int:
    """Return how many steps were executed, including repetitions."""
    return len(LOG.read_text().splitlines())


def follow(handle: Handle[int], steps: int, kills: int) -> int:
    """Wait for the end and kill the worker at equal intervals. Return how often it was killed."""
    worker, killed = start_worker(), 0
    try:
        while not handle.state.finished:
            part = executed() / steps
            if killed < kills and part > (killed + 1) / (kills + 1):
                worker.kill()
                worker.wait()
                killed += 1
                print(f"killed the worker at {part:.0%}", flush=True)
                worker = start_worker()
            time.sleep(0.05)
    finally:  # also after Ctrl-C: the import returns to its queue, and the next start continues it
        worker.send_signal(signal.SIGTERM)
        worker.wait()
    return killed


def imported() -> list[tuple[int, int]]:
    """Return each number in the table, and how often it occurs."""
    with closing(connect()) as connection:
        query = "select n, count(*) from imported group by n order by n"
        return [(n, count) for n, count in connection.execute(query).fetchall()]


def connect() -> Any:
    url = app.settings.broker
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///").partition("?")[0])
    import psycopg

    return psycopg.connect(url.partition("?")[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=5)
    given = parser.parse_args()

    asyncio.run(app.backend.migrate())
    # A second start while the import is live gets a handle for the same import.
    only = Unique("the import", on_conflict="return")
    handle = import_rows.options(unique=only).delay(given.rows, PAGE)
    if not handle.record().attempts:
        LOG.write_text("")
    print(f"import of {given.rows:,} rows: job {handle.id}", flush=True)
    steps = 1 + 2 * -(-given.rows // PAGE)
    try:
        killed = follow(handle, steps, given.kills)
    except KeyboardInterrupt:
        sys.exit(f"stopped after {executed()} steps; start it again and it goes on")

    rows = handle.get(timeout=5)
    times = executed()
    assert imported() == [(n, 1) for n in range(rows)], "a row is missing, or there twice"
    print(f"{rows:,} rows are there, each of them once")
    print(f"{steps} steps, {killed} kills: {times} executed, {times - steps} of them again")


if __name__ == "__main__":
    main()
