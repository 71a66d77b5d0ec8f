"""Tasks that run on every worker, for scenario tests in real worker processes."""

from __future__ import annotations

import os
import signal

from umbel import Umbel, current

app = Umbel(namespace="scenario")


@app.task(name="notify", broadcast=True, retry=0)
def notify(deadly: int) -> int:
    """Kill the worker with this index."""
    if current.worker.index == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return current.job.attempt


@app.task(name="welcome", broadcast=600.0)
async def welcome() -> str:
    return current.worker.name
