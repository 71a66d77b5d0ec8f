"""The application that ``umbel bench`` measures; its worker runs in its own process.

UMBEL_URL and UMBEL_NAMESPACE configure it, as any application.
"""

from __future__ import annotations

from umbel.app import Umbel
from umbel.clock import SystemClock

IO, CPU, GATED, IDLE = "bench-io", "bench-cpu", "bench-gated", "bench-idle"

app = Umbel()


@app.task(queue=IO)
async def nothing_async(number: int) -> int:
    return number


@app.task(queue=CPU)
def nothing_sync(number: int) -> int:
    return number


@app.task(queue=GATED, limit=1_000_000)
async def nothing_limited(number: int) -> int:
    return number


@app.task(queue=IDLE)
async def now() -> float:
    return SystemClock().now()
