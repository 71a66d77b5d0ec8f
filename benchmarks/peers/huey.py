"""Huey on SQLite: `huey_consumer` with eight threads."""

from __future__ import annotations

from huey import SqliteHuey

from benchmarks import probe
from benchmarks.peers.port import URL, Job, Peer

# Left alone, Huey sets no level of its own: SQLite's default, full, as Umbel's.
huey = SqliteHuey(filename=URL.removeprefix("sqlite:///"))

_POLL = 0.002


@huey.task(name="nothing")
def nothing(job: Job) -> None:
    probe.started(job)


@huey.task(name="answer")
def answer(job: Job) -> bool:
    # Huey keeps no result that is None.
    probe.started(job)
    return True


class Adapter(Peer):
    def send(self, job: Job) -> None:
        nothing(job)

    async def round_trip(self, job: Job) -> None:
        answer(job).get(blocking=True, timeout=10, backoff=1.0, max_delay=_POLL)
