"""Systems on NATS: JetStream, streams in files."""

from __future__ import annotations

from benchmarks.entrants import umbel
from benchmarks.systems import System

_TWO = (2,)
_TASKIQ = (
    *("taskiq", "worker", "benchmarks.peers.taskiq:broker"),
    *("--workers", "{processes}", "--log-level", "WARNING"),
)
_TASKIQ_PROMISES = (
    "the stream confirms; acknowledged after it ran: a crash runs it again; no record"
)
_PROMISES = f"the stream confirms; {umbel.RECORDED}"

SYSTEMS = (
    System(
        peer="umbel",
        database="nats",
        store="redis",
        worker=umbel.WORKER,
        unfinished=umbel.IN_REDIS,
        size=50_000,
        processes=_TWO,
        setup=umbel.SETUP,
        promises=_PROMISES,
    ),
    System(
        peer="umbel",
        database="nats",
        store="postgresql",
        worker=umbel.WORKER,
        unfinished=umbel.IN_POSTGRES,
        size=50_000,
        processes=_TWO,
        setup=umbel.SETUP,
        promises=_PROMISES,
    ),
    System(
        peer="taskiq",
        database="nats",
        results="redis",
        worker=_TASKIQ,
        size=20_000,
        processes=_TWO,
        setup="PullBasedJetStreamBroker, uvloop; results in Redis for round trips",
        promises=_TASKIQ_PROMISES,
    ),
    System(
        peer="taskiq",
        variant="in batches",
        groups=("drain",),
        database="nats",
        results="redis",
        worker=_TASKIQ,
        size=20_000,
        processes=_TWO,
        setup="the same with pull_consume_batch=100: a lone job would wait until a batch is full",
        promises=_TASKIQ_PROMISES,
    ),
)

NOTES = ("Taskiq is the only peer with a broker for JetStream; the others have none for NATS.",)
