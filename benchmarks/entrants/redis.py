"""Systems on Redis. Publishing has the server's answer in all of them; what that is worth when the
server dies is the server's setting, and the same for all."""

from __future__ import annotations

from benchmarks.entrants import umbel
from benchmarks.systems import CLIENT, System

_TWO = (2,)
"""Two processes serve all of them best on two cores."""

SYSTEMS = (
    System(
        peer="umbel",
        database="redis",
        worker=umbel.WORKER,
        unfinished=umbel.IN_REDIS,
        size=75_000,
        processes=_TWO,
        setup=umbel.SETUP,
        promises="state and record of every job, settled in one step, fenced",
    ),
    System(
        peer="celery",
        database="redis",
        worker=(
            *("celery", "-A", "benchmarks.peers.celery", "worker", "-l", "WARNING"),
            *("-P", "prefork", "-c", "{processes}"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ),
        size=4_000,
        kinds=("sync",),
        processes=_TWO,
        setup="celery worker -P prefork, ignore_result; results in Redis for round trips, canvases",
        promises="acknowledged before it runs: a crash loses it; no record kept",
    ),
    System(
        peer="dramatiq",
        database="redis",
        worker=("dramatiq", "benchmarks.peers.dramatiq", "-p", "{processes}", "-t", "8"),
        size=12_000,
        kinds=("sync",),
        processes=_TWO,
        setup="dramatiq -t 8; results in Redis for round trips",
        promises="acknowledged after it ran: a crash runs it again; no record kept",
    ),
    System(
        peer="taskiq",
        database="redis",
        worker=(
            *("taskiq", "worker", "benchmarks.peers.taskiq:broker"),
            *("--workers", "{processes}", "--log-level", "WARNING"),
        ),
        size=18_000,
        processes=_TWO,
        setup="RedisStreamBroker, uvloop; results in Redis for round trips",
        promises="acknowledged after it ran: a crash runs it again; the stream keeps every job",
    ),
    System(
        peer="rq",
        database="redis",
        worker=(
            *("rq", "worker-pool", "bench", "-n", "{processes}", "-q", "--url", "{url}"),
            *("-w", "rq.worker.SimpleWorker"),
        ),
        size=2_000,
        kinds=("sync",),
        processes=_TWO,
        setup="rq worker-pool with SimpleWorker, which does not fork for each job",
        promises="state and result of every job kept for 500 s; a crash makes it a failed job",
    ),
    System(
        peer="arq",
        database="redis",
        worker=(*CLIENT, "arq", "work"),
        unfinished="return redis.call('ZCARD', 'arq:queue')",
        size=6_000,
        kinds=("async",),
        processes=_TWO,
        setup="max_jobs=100, poll_delay=0.02, keep_result=0, uvloop; results kept for round trips",
        promises="removed after it ran: a crash runs it again; no record kept",
    ),
    System(
        peer="saq",
        database="redis",
        worker=("saq", "benchmarks.peers.saq.settings", "--workers", "{processes}", "-q"),
        size=4_000,
        processes=_TWO,
        setup="saq with concurrency=10, uvloop",
        promises="state and result of every job kept for 600 s; a sweep finds what a crash left",
    ),
    System(
        peer="huey",
        database="redis",
        worker=(
            *("huey_consumer", "benchmarks.peers.huey.huey", "-q"),
            *("-k", "process", "-w", "{processes}"),
        ),
        size=16_000,
        kinds=("sync",),
        processes=_TWO,
        setup="huey_consumer -k process",
        promises="a job is taken off the queue before it runs: a crash loses it; no record kept",
    ),
    System(
        peer="streaq",
        database="redis",
        worker=("streaq", "run", "benchmarks.peers.streaq:worker", "-w", "{processes}"),
        size=6_000,
        processes=_TWO,
        setup="streaq run, uvloop",
        promises="acknowledged after it ran: a crash runs it again; results kept for 300 s",
    ),
    System(
        peer="repid",
        database="redis",
        worker=(*CLIENT, "repid", "work"),
        size=45_000,
        processes=_TWO,
        setup="run_worker(), uvloop",
        promises="acknowledged after it ran; the stream keeps every job; no results",
    ),
)

NOTES = (
    "Celery's and Dramatiq's groups publish one message at a time: they count as no bulk call.",
    "Repid keeps no results, so it has no round trip.",
)
