"""What a peer's adapter offers the measurements. It leaves out what the peer has no notion of."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

Job = dict[str, Any]
"""The one argument of the measured task: about a hundred bytes of JSON."""

URL = os.environ.get("BENCH_URL", "")
"""The server to work on."""
STORE = os.environ.get("BENCH_STORE", "")
"""The server for records or results, where it is another one."""
NAME = os.environ.get("BENCH_NAME", "umbel")
"""What to call whatever is made on a server that others use too."""
VARIANT = os.environ.get("BENCH_VARIANT", "")
"""The set-up, where a peer is measured in several."""
RESULTS = "BENCH_RESULTS" in os.environ
"""Whether results are asked for: who can do without keeps none otherwise."""
CONFIRM = "BENCH_CONFIRM" in os.environ
"""Whether publishing is to wait for the broker's confirm, where that can be chosen."""
KIND = os.environ.get("BENCH_KIND", "async")
"""What the measured task is: ``async`` or ``sync``."""


def job(number: int) -> Job:
    """A job that says when it was sent, by the clock that all processes of a machine share."""
    return {
        "sent": time.monotonic_ns(),
        "number": number,
        "user": "user-00012345",
        "note": "x" * 24,
    }


class Peer:
    """One peer. ``open`` comes before every other call but ``install`` and ``work``."""

    def install(self) -> None:
        """Make the tables."""

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """Part."""

    def send(self, job: Job) -> None:
        """Publish one job; safe to call from several threads."""
        raise NotImplementedError

    async def asend(self, job: Job) -> None:
        """Publish one job."""
        raise NotImplementedError

    async def bulk(self, jobs: Sequence[Job]) -> None:
        """Publish many jobs in one call."""
        raise NotImplementedError

    async def round_trip(self, job: Job) -> None:
        """Publish one job and wait until its result is here."""
        raise NotImplementedError

    def canvas(self, form: str, count: int) -> Any:
        """Publish a chord or chain of so many calls, or nested chords; return its handle."""
        raise NotImplementedError

    def result(self, handle: Any, seconds: float) -> int:
        """Wait for the result of a canvas: how many calls it had."""
        raise NotImplementedError

    def note_sizes(self) -> None:
        """Note the sizes of the messages published since the last call, if they were not noted
        when they were published."""

    def work(self) -> None:
        """Be a worker until told to stop: for peers without a command of their own."""
        raise NotImplementedError

    @classmethod
    def offers(cls, call: str) -> bool:
        """Whether the peer has this call."""
        return getattr(cls, call) is not getattr(Peer, call)
