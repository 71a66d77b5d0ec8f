"""The systems compared: how each one's worker is started, and what it promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Database = Literal["postgresql", "sqlite"]
Kind = Literal["async", "sync"]

_CLIENT = ("python", "-m", "benchmarks.client")


@dataclass(frozen=True, kw_only=True)
class System:
    """One system on one database."""

    peer: str
    database: Database
    worker: tuple[str, ...]
    """The command of a worker; ``{processes}`` when one command starts several."""
    unfinished: str | None
    """A query for how many jobs are not recorded as finished; None if nothing records it."""
    size: int
    """How many jobs a drain has: a few seconds' work."""
    kinds: tuple[Kind, ...] = ("async", "sync")
    setup: str
    promises: str

    @property
    def name(self) -> str:
        return f"{self.peer} · {'PostgreSQL' if self.database == 'postgresql' else 'SQLite'}"

    @property
    def several(self) -> bool:
        """Whether its command starts several processes itself."""
        return any("{processes}" in word for word in self.worker)


_UMBEL = (
    *("umbel", "-A", "benchmarks.peers.umbel:app", "worker"),
    *("--io", "300", "--cpu", "100"),
    *("--processes", "{processes}", "--log-level", "warning"),
)
_RECORDED = "state and record of every job, settled in one transaction, fenced"

SYSTEMS = (
    System(
        peer="umbel",
        database="postgresql",
        worker=_UMBEL,
        unfinished="select count(*) from umbel.job",
        size=30_000,
        setup="umbel worker --io 300 --cpu 100, uvloop",
        promises=_RECORDED,
    ),
    System(
        peer="pgqueuer",
        database="postgresql",
        worker=(*_CLIENT, "pgqueuer", "work"),
        unfinished="select count(*) from pgqueuer",
        size=30_000,
        setup="run() with batch_size=100, asyncpg, uvloop",
        promises="completions are written in batches: a crash runs up to a batch again",
    ),
    System(
        peer="procrastinate",
        database="postgresql",
        worker=("procrastinate", "-a", "benchmarks.peers.procrastinate.app", "worker", "-c", "16"),
        unfinished="select count(*) from procrastinate_jobs where status in ('todo', 'doing')",
        size=2_000,
        setup="procrastinate worker -c 16, psycopg",
        promises="state of every job; no results",
    ),
    System(
        peer="chancy",
        database="postgresql",
        worker=(*_CLIENT, "chancy", "work"),
        unfinished="select count(*) from chancy_jobs where completed_at is null",
        size=4_000,
        setup="Worker with eager_polling and 16 slots, uvloop",
        promises="completions are written once a second: a crash runs up to a second's jobs again",
    ),
    System(
        peer="dbos",
        database="postgresql",
        worker=(*_CLIENT, "dbos", "work"),
        unfinished="select count(*) from dbos.workflow_status where completed_at is null",
        size=1_500,
        setup="polling_interval_sec=0.05, worker_concurrency=64",
        promises="state, input and result of every workflow and its steps",
    ),
    System(
        peer="umbel",
        database="sqlite",
        worker=_UMBEL,
        unfinished="select count(*) from job",
        size=10_000,
        setup="umbel worker --io 300 --cpu 100, uvloop; WAL, synchronous=full",
        promises=_RECORDED,
    ),
    System(
        peer="huey",
        database="sqlite",
        worker=("huey_consumer", "benchmarks.peers.huey.huey", "-q", "-k", "thread", "-w", "8"),
        unfinished=None,
        size=4_000,
        kinds=("sync",),
        setup="huey_consumer, 8 threads; WAL, synchronous=full (SQLite's default)",
        promises="a job is taken off the queue before it runs: a crash loses it; no record kept",
    ),
)
