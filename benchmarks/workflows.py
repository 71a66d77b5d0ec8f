"""What workflows cost: runs that wait for a signal, and the order of five steps beside DBOS.

``UMBEL_URL=... python -m benchmarks.workflows waiting`` starts 10,000 runs that wait for a person.
It prints what an idle worker and its server do without and with them, and the time from a signal
to the start of the task that waited for it. ``python -m benchmarks.workflows order`` prints runs
per second and the duration of a run; ``workflows_dbos.py`` does the same with DBOS. Use a database
of its own: the statements of all of its clients are counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from umbel import Handle, Signal, Umbel

IDLE_SECONDS = 10.0
SIGNALS = 200
ORDERS = 100
AT_ONCE = 20
SEQUENTIAL = 20

app = Umbel(namespace=os.environ.get("UMBEL_NAMESPACE", "workflows"))


@app.task(name="started")
async def started(value: float) -> float:
    """Return how long ago the signal was given."""
    return time.time() - value


@app.workflow(name="waiting")
def waiting() -> Any:
    return started.s(Signal("go", timeout=30 * 86_400, type=float))


@app.task(name="reserve")
async def reserve(order: int) -> int:
    return order


@app.task(name="charge")
async def charge(stock: int) -> int:
    return stock


@app.task(name="pack")
async def pack(paid: int, approved: bool) -> int:
    return paid


@app.task(name="ship")
async def ship(packed: int) -> int:
    return packed


@app.workflow(name="order")
def order(number: int) -> Any:
    """Five steps: reserve, charge, approve, pack, ship."""
    paid = charge.s(reserve.s(number).result)
    return ship.s(pack.s(paid.result, Signal("approved", type=bool).after(paid).result).result)


@contextmanager
def worker() -> Iterator[int]:
    """Run a worker in another process. Yields its process id."""
    command = (sys.executable, "-m", "umbel", "-A", "benchmarks.workflows:app", "worker")
    process = subprocess.Popen(
        [*command, "--io", "64"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        started.delay(time.time()).get(timeout=60)
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


def cpu_seconds(process: int) -> float:
    with open(f"/proc/{process}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def counter(url: str) -> Callable[[], int]:
    """Return what counts the statements of the server: transactions, or commands of Redis."""
    if url.startswith("redis"):
        import redis

        client = redis.Redis.from_url(url)
        return lambda: int(client.info("stats")["total_commands_processed"])
    import psycopg

    connection = psycopg.connect(url.partition("?")[0], autocommit=True)

    def commits() -> int:
        row = connection.execute(
            "select xact_commit from pg_stat_database where datname = current_database()"
        ).fetchone()
        assert row is not None
        return int(row[0])

    return commits


def measure_idle(url: str, process: int) -> dict[str, float]:
    count = counter(url)
    time.sleep(3)  # after the start
    cpu, statements, begun = cpu_seconds(process), count(), time.monotonic()
    time.sleep(IDLE_SECONDS)
    seconds = time.monotonic() - begun
    return {
        "worker_cpu_percent": 100 * (cpu_seconds(process) - cpu) / seconds,
        "server_statements_per_second": (count() - statements) / seconds,
    }


async def start_many(count: int) -> list[Handle[Any]]:
    found: list[Handle[Any]] = []

    async def publish(share: int) -> None:
        for _ in range(share):
            found.append(await waiting.adelay())

    await asyncio.gather(*(publish(count // AT_ONCE) for _ in range(AT_ONCE)))
    return found


def measure_waiting(url: str, count: int) -> dict[str, Any]:
    with worker() as process:
        before = measure_idle(url, process)
    begun = time.monotonic()
    handles = asyncio.run(start_many(count))
    seconds = time.monotonic() - begun
    with worker() as process:
        after = measure_idle(url, process)
        times = []
        for handle in handles[:SIGNALS]:
            handle.signal("go", time.time())
            times.append(handle.get(timeout=60))
    return {
        "without": before,
        f"with {len(handles):,} runs": after,
        "starts_per_second": len(handles) / seconds,
        "signal_to_start_ms": percentiles(times),
    }


def percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(1000 * one for one in seconds)
    return {"p50": statistics.median(ordered), "p95": ordered[int(len(ordered) * 0.95)]}


async def run_orders(count: int, at_once: int) -> list[float]:
    times: list[float] = []
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            begun = time.monotonic()
            handle = await order.adelay(number)
            await handle.asignal("approved", True)
            await handle.aget(60)
            times.append(time.monotonic() - begun)

    await asyncio.gather(*(caller() for _ in range(at_once)))
    return times


def measure_orders() -> dict[str, Any]:
    with worker():
        asyncio.run(run_orders(20, 5))
        begun = time.monotonic()
        asyncio.run(run_orders(ORDERS, AT_ONCE))
        seconds = time.monotonic() - begun
        alone = asyncio.run(run_orders(SEQUENTIAL, 1))
    return {"runs_per_second": ORDERS / seconds, "one_run_ms": percentiles(alone)}


def main() -> None:
    what, url = sys.argv[1], os.environ["UMBEL_URL"]
    asyncio.run(app.backend.migrate())
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    found = measure_orders() if what == "order" else measure_waiting(url, count)
    print(json.dumps({"url": url.partition("?")[0], "what": what, **found}, indent=1))


if __name__ == "__main__":
    main()
