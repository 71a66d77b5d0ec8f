"""Run twenty plans on four workers and print how many plans each worker has."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import plans
from umbel import Handle

HERE = Path(__file__).parent
PATH = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
WORKERS, PLANS, PARTS = 4, 20, 6


def start(index: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "umbel", "-A", "plans", "worker", "--index", str(index)]
    options = ["--cpu", "2", "--lease", "3", "--log-level", "warning"]
    environment = {**os.environ, "PYTHONPATH": PATH}
    return subprocess.Popen([*command, *options], env=environment)


def main() -> None:
    workers = [start(index) for index in range(WORKERS)]
    while sum(index.alive for index in plans.app.routes.worker_indexes()) < WORKERS:
        time.sleep(0.1)
    handles: list[Handle[Any]] = []
    for number in range(PLANS):
        plan = f"plan-{number}"
        handles += [plans.prepare.delay(plan)]
        handles += [plans.compute.delay(plan, part % 3) for part in range(PARTS)]
    shown = ""
    try:
        while left := [handle for handle in handles if handle.state not in ("succeeded", "buried")]:
            counts = [index.routes for index in plans.app.routes.worker_indexes()]
            line = f"{len(handles) - len(left):3} of {len(handles)} done, plans by worker: {counts}"
            if line != shown:
                print(line, flush=True)
                shown = line
            time.sleep(0.5)
        ends: list[Handle[Any]] = [plans.finish.delay(f"plan-{number}") for number in range(PLANS)]
        ends += [plans.forget.delay(f"plan-{number}") for number in range(PLANS)]
        ends += [plans.drop_buffers.delay(f"plan-{number}") for number in range(PLANS)]
        for handle in ends:
            handle.get(timeout=60)
        print("all plans finished; files left:", [str(p) for p in plans.ROOT.glob("worker-*/*")])
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        for worker in workers:
            worker.wait()


if __name__ == "__main__":
    main()
