"""Systems on PostgreSQL and SQLite."""

from __future__ import annotations

from benchmarks.entrants import umbel
from benchmarks.systems import CLIENT, System

SYSTEMS = (
    System(
        peer="umbel",
        database="postgresql",
        worker=umbel.WORKER,
        unfinished=umbel.IN_POSTGRES,
        size=30_000,
        setup=umbel.SETUP,
        promises=umbel.RECORDED,
    ),
    System(
        peer="pgqueuer",
        database="postgresql",
        worker=(*CLIENT, "pgqueuer", "work"),
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
        worker=(*CLIENT, "chancy", "work"),
        unfinished="select count(*) from chancy_jobs where completed_at is null",
        size=12_000,
        setup="Worker with eager_polling and 16 slots, uvloop",
        promises="completions are written once a second: a crash runs up to a second's jobs again",
    ),
    System(
        peer="dbos",
        database="postgresql",
        worker=(*CLIENT, "dbos", "work"),
        unfinished="select count(*) from dbos.workflow_status where completed_at is null",
        size=1_500,
        setup="polling_interval_sec=0.05, worker_concurrency=64",
        promises="state, input and result of every workflow and its steps",
    ),
    System(
        peer="umbel",
        database="sqlite",
        worker=umbel.WORKER,
        unfinished="select count(*) from job",
        size=45_000,
        setup=f"{umbel.SETUP}; WAL, synchronous=full",
        promises=umbel.RECORDED,
    ),
    System(
        peer="huey",
        database="sqlite",
        worker=("huey_consumer", "benchmarks.peers.huey.huey", "-q", "-k", "thread", "-w", "8"),
        size=9_000,
        kinds=("sync",),
        setup="huey_consumer, 8 threads; WAL, synchronous=full (SQLite's default)",
        promises="a job is taken off the queue before it runs: a crash loses it; no record kept",
    ),
)
