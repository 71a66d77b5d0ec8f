"""Huey on SQLite or Redis: `huey_consumer`, with threads or with processes."""

from __future__ import annotations

from huey import Huey, RedisHuey, SqliteHuey

from benchmarks import probe
from benchmarks.peers.port import URL, Job, Peer

_POLL = 0.002


def _huey() -> Huey:
    if URL.startswith("sqlite"):
        # Left alone, Huey sets no level of its own: SQLite's default, full, as Umbel's.
        return SqliteHuey(filename=URL.removeprefix("sqlite:///"))
    return RedisHuey(url=URL)


huey = _huey()


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
