"""Systems on RabbitMQ: durable queues, persistent messages."""

from __future__ import annotations

from benchmarks.entrants import umbel
from benchmarks.systems import System

_TWO = (2,)
_QUEUES = ("umbel.default.io", "umbel.default.cpu", "umbel.default.any")
_PROMISES = f"publisher confirms; {umbel.RECORDED}"

SYSTEMS = (
    System(
        peer="umbel",
        database="rabbitmq",
        store="redis",
        worker=umbel.WORKER,
        unfinished=umbel.IN_REDIS,
        size=45_000,
        processes=_TWO,
        queues=_QUEUES,
        setup=umbel.SETUP,
        promises=_PROMISES,
    ),
    System(
        peer="umbel",
        database="rabbitmq",
        store="postgresql",
        worker=umbel.WORKER,
        unfinished=umbel.IN_POSTGRES,
        size=45_000,
        processes=_TWO,
        queues=_QUEUES,
        setup=umbel.SETUP,
        promises=_PROMISES,
    ),
    System(
        peer="celery",
        database="rabbitmq",
        worker=(
            *("celery", "-A", "benchmarks.peers.celery", "worker", "-l", "WARNING"),
            *("-P", "prefork", "-c", "{processes}"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ),
        size=8_000,
        kinds=("sync",),
        processes=_TWO,
        queues=("celery",),
        setup="celery worker -P prefork, ignore_result; rpc:// for round trips",
        promises="no confirms by default; acknowledged before it runs: a crash loses it; no record",
    ),
    System(
        peer="dramatiq",
        database="rabbitmq",
        results="redis",
        worker=("dramatiq", "benchmarks.peers.dramatiq", "-p", "{processes}", "-t", "8"),
        size=24_000,
        kinds=("sync",),
        processes=_TWO,
        queues=("default", "default.DQ", "default.XQ"),
        setup="dramatiq -t 8; results in Redis for round trips",
        promises="no confirms by default; acknowledged after it ran: a crash repeats it; no record",
    ),
    System(
        peer="taskiq",
        database="rabbitmq",
        results="redis",
        worker=(
            *("taskiq", "worker", "benchmarks.peers.taskiq:broker"),
            *("--workers", "{processes}", "--log-level", "WARNING"),
        ),
        size=15_000,
        processes=_TWO,
        queues=("taskiq", "taskiq.dead_letter", "taskiq.delay"),
        setup="AioPikaBroker(qos=100), uvloop; results in Redis for round trips",
        promises="publisher confirms; acknowledged after it ran: a crash runs it again; no record",
    ),
)

NOTES = (
    "Celery and Dramatiq wait for no confirm unless they are told to: in the row of confirmed"
    " publishing they are told to (confirm_publish, confirm_delivery=True).",
    "Repid is not measured: it speaks AMQP 1.0 only, for which RabbitMQ 3 needs a plug-in.",
)
