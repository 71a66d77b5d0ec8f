"""``python -m chaos.soak``: steady work for a long time, and no resource may grow.

Two workers and a publisher on each database. Every few seconds their memory, files, threads and
connections are sampled, and the size of the database on disk. A robust linear fit of each series
shows whether it grows by more than noise.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg

from chaos.backends_under_test import BackendUnderTest, open_backend
from chaos.leak_detection import Bound, Point, Verdict, drawing, judge, spark
from chaos.server_processes import NotAvailable

HERE = Path(__file__).parent
RATE = 40.0
KEEP = 1_000
"""Records kept. Pruning makes the tables level off within the warm-up of a run of minutes."""
LEAKS = ("memory", "connection")

BOUNDS = {
    "memory, MB": Bound(noise=6, an_hour=5),
    "files": Bound(noise=6, an_hour=2),
    "threads": Bound(noise=4, an_hour=1),
    "connections": Bound(noise=6, an_hour=1),
    "size, MB": Bound(noise=8, an_hour=10),
}
"""The bound for each suffix of a series' name."""


class SoakedDatabase:
    """One database with its three processes, and their samples."""

    def __init__(self, backend: BackendUnderTest, folder: Path, leak: str) -> None:
        self.name = backend.name
        self.series: dict[str, list[Point]] = {}
        self._backend = backend
        self._log = (folder / f"{backend.name}.log").open("ab")
        self._environment = {
            **os.environ,
            "UMBEL_URL": backend.url,
            "UMBEL_KEEP_COUNT": str(KEEP),
            "UMBEL_DEADLINE": "30",
            "UMBEL_BACKLOG": "none",
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
            "SOAK_LEAK": leak,
            "SOAK_RATE": str(RATE),
        }
        worker = [sys.executable, "-m", "umbel", "-A", "soak_tasks:app", "worker"]
        self._processes = {
            "worker 0": self._start(*worker, "--name", "worker-0", "--log-level", "warning"),
            "worker 1": self._start(*worker, "--name", "worker-1", "--log-level", "warning"),
            "publisher": self._start(sys.executable, str(HERE / "soak_tasks.py")),
        }
        self._seen = {name: psutil.Process(one.pid) for name, one in self._processes.items()}

    def sample(self, at: float) -> None:
        """Take one sample of everything. Raises if a process has ended, which is never expected."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise RuntimeError(f"{self.name}: {name} ended with {process.returncode}")
            seen = self._seen[name]
            with seen.oneshot():
                self._note(f"{name} memory, MB", at, seen.memory_info().rss / 1e6)
                self._note(f"{name} files", at, seen.num_fds())
                self._note(f"{name} threads", at, seen.num_threads())
        for name, value in self._sizes():
            self._note(name, at, value)

    def finished(self) -> int:
        """Return how many jobs have left the job table."""
        if self._backend.name == "sqlite":
            return self._sqlite("select max(rowid) from record")  # the newest is never pruned
        with psycopg.connect(self._backend.url) as connection:
            query = (
                "select coalesce(pg_sequence_last_value('umbel.job_seq_seq'), 0)"
                " - (select count(*) from umbel.job)"
            )
            row = connection.execute(query.encode()).fetchone()
            return int(row[0]) if row else 0

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._log.close()

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, env=self._environment, stdout=self._log, stderr=self._log, cwd=HERE
        )

    def _note(self, name: str, at: float, value: float) -> None:
        self.series.setdefault(name, []).append((at, round(value, 3)))

    def _sizes(self) -> Iterator[tuple[str, float]]:
        if self._backend.name == "sqlite":
            path = Path(self._backend.url.removeprefix("sqlite:///"))
            yield "file size, MB", path.stat().st_size / 1e6
            log = Path(f"{path}-wal")
            yield "write-ahead log size, MB", log.stat().st_size / 1e6 if log.exists() else 0.0
            return
        with psycopg.connect(self._backend.url) as connection:
            others = "select count(*) - 1 from pg_stat_activity where backend_type like 'client%'"
            row = connection.execute(others.encode()).fetchone()
            yield "connections", float(row[0]) if row else 0.0
            for table in ("job", "record"):
                query = f"select pg_table_size('umbel.{table}'), pg_indexes_size('umbel.{table}')"
                heap, indexes = connection.execute(query.encode()).fetchone() or (0, 0)
                yield f"{table} table size, MB", heap / 1e6
                yield f"{table} index size, MB", indexes / 1e6

    def _sqlite(self, query: str) -> int:
        path = self._backend.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            return int(connection.execute(query).fetchone()[0] or 0)


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    seconds = options.hours * 3600 if options.hours else options.minutes * 60
    names = [options.only] if options.only else ["sqlite", "postgres"]
    with _databases(names, options.leak or "") as databases:
        _soak(databases, seconds, max(options.every, seconds / 5000))
        counts = {database.name: database.finished() for database in databases}
    warm_up = min(seconds / 3, 600)
    print(f"slopes after a warm-up of {warm_up:.0f} s, an hour, by Theil–Sen")
    leaks = 0
    for database in databases:
        verdicts = {
            name: judge(points, bound_of(name), warm_up) for name, points in database.series.items()
        }
        leaks += sum(verdict.leaks for verdict in verdicts.values())
        text = _summary(database, verdicts, counts[database.name])
        print(text)
        if options.report:
            _write(Path(options.report), database, verdicts, text)
    print(f"leaks: {leaks}")
    return 1 if leaks or not databases else 0


def bound_of(name: str) -> Bound:
    """What counts as a leak for this series."""
    return next(bound for end, bound in BOUNDS.items() if name.endswith(end))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--hours", type=float, help="instead of minutes")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two samples")
    parser.add_argument("--only", choices=["sqlite", "postgres"])
    parser.add_argument("--report", metavar="DIR", help="write the series there, as SVG and text")
    parser.add_argument("--leak", choices=LEAKS, help="let a task leak, to see that it is found")
    return parser


@contextmanager
def _databases(names: Sequence[str], leak: str) -> Iterator[list[SoakedDatabase]]:
    folder = Path(tempfile.mkdtemp(prefix="umbel-soak-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        databases = []
        for name in names:
            try:
                backend = stack.enter_context(open_backend(name, 0))
            except NotAvailable as error:
                print(error)
                continue
            databases.append(SoakedDatabase(backend, folder, leak))
            stack.callback(databases[-1].end)
        yield databases


def _soak(databases: Sequence[SoakedDatabase], seconds: float, every: float) -> None:
    began = time.monotonic()
    printed = began - 10
    print("  minute  database   jobs done  memory MB (each process)  files        threads   disk")
    while (now := time.monotonic() - began) < seconds:
        for database in databases:
            database.sample(now)
        if time.monotonic() - printed >= max(10.0, seconds / 60):
            printed = time.monotonic()
            for database in databases:
                print(_row(database, now), flush=True)
        time.sleep(every)


def _row(database: SoakedDatabase, now: float) -> str:
    last = {name: points[-1][1] for name, points in database.series.items()}

    def of(end: str) -> str:
        return " ".join(f"{value:.0f}" for name, value in last.items() if name.endswith(end))

    disk = sum(value for name, value in last.items() if name.endswith("size, MB"))
    return (
        f"  {now / 60:6.1f}  {database.name:9}  {database.finished():9}  {of('memory, MB'):24}"
        f"  {of('files'):11}  {of('threads'):8}  {disk:.1f}"
    )


def _summary(database: SoakedDatabase, verdicts: dict[str, Verdict], jobs: int) -> str:
    lines = [f"{database.name}: {jobs} jobs"]
    for name, verdict in verdicts.items():
        values = [value for _, value in database.series[name]]
        said = "LEAKS" if verdict.leaks else "steady"
        lines.append(
            f"  {name:26} {spark(values):30} {verdict.first:8.1f} to {verdict.last:8.1f}"
            f"  {verdict.slope:+9.2f} an hour, bound {verdict.bound:6.0f}  {said}"
        )
    return "\n".join(lines)


def _write(folder: Path, database: SoakedDatabase, verdicts: dict[str, Verdict], text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"soak-{database.name}.txt").write_text(f"{text}\n")
    drawn: dict[str, Sequence[Point]] = {**database.series}
    (folder / f"soak-{database.name}.svg").write_text(drawing(drawn, verdicts))


if __name__ == "__main__":
    sys.exit(main())
