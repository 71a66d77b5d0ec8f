"""The order of ``workflows.py`` with DBOS, which runs workflows in the process that starts them.

``python benchmarks/workflows_dbos.py URL``, with ``pip install dbos``.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from dbos import DBOS

ORDERS = 100
AT_ONCE = 20
SEQUENTIAL = 20


@DBOS.step()
def reserve(order: int) -> int:
    return order


@DBOS.step()
def charge(stock: int) -> int:
    return stock


@DBOS.step()
def pack(paid: int) -> int:
    return paid


@DBOS.step()
def ship(packed: int) -> int:
    return packed


@DBOS.workflow()
def order(number: int) -> int:
    paid = charge(reserve(number))
    DBOS.recv("approved", timeout_seconds=60)
    return ship(pack(paid))


def run(number: int) -> float:
    begun = time.monotonic()
    handle = DBOS.start_workflow(order, number)
    DBOS.send(handle.get_workflow_id(), True, "approved")
    handle.get_result()
    return time.monotonic() - begun


def main() -> None:
    DBOS(
        config={
            "name": "orders",
            "system_database_url": sys.argv[1],
            "log_level": "ERROR",
            "run_admin_server": False,
        }
    )
    DBOS.launch()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(run, range(20)))
        begun = time.monotonic()
        list(pool.map(run, range(ORDERS)))
        seconds = time.monotonic() - begun
    alone = sorted(1000 * run(number) for number in range(SEQUENTIAL))
    found = {
        "runs_per_second": ORDERS / seconds,
        "one_run_ms": {"p50": statistics.median(alone), "p95": alone[int(SEQUENTIAL * 0.95)]},
    }
    print(json.dumps(found, indent=1))
    DBOS.destroy()


if __name__ == "__main__":
    main()
