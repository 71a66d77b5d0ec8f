"""Compute plans: all tasks of a plan run on the worker that keeps its files, until it is finished.

Each worker has its own folder, as each pod of a StatefulSet has its own volume. The first task of a
plan fetches its inputs into this folder, the others use them, and the last one deletes them and
releases the plan's route. If the worker is lost, the plan continues on another worker, where its
inputs are fetched again.
"""

import json
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from umbel import Umbel, current

app = Umbel()
ROOT = Path(os.environ.get("PLANS", "plans"))
ROWS = 100
_fetching = threading.Lock()


class Astray(Exception):
    """A task runs on a worker that does not keep the files of its plan."""


@app.task(queue="compute", affinity="plan", max_deaths=100)
def prepare(plan: str) -> None:
    """Fetch a plan's inputs into this worker's folder."""
    with _noted(plan):
        _files(plan)


@app.task(queue="compute", affinity="plan", max_deaths=100)
def compute(plan: str, part: int) -> int:
    """Compute one part of the inputs."""
    with _noted(plan):
        inputs = json.loads((_files(plan) / "inputs.json").read_text())
        time.sleep(0.02)
        result: int = sum(inputs[part::3])
        _database(plan, "insert or replace into result values (?, ?, ?)", part, result)
        return result


@app.task(queue="compute", affinity="plan", only_if_routed=True, max_deaths=100)
def finish(plan: str) -> None:
    """Delete the files on the worker that has them, and release the route."""
    with _noted(plan):
        shutil.rmtree(_files(plan), ignore_errors=True)
        app.routes.release(plan, "finished")


@app.task(broadcast=True)
def drop_buffers(plan: str) -> bool:
    """Delete files of a plan that an earlier route has left on this worker."""
    left = ROOT / f"worker-{current.worker.index}" / plan
    if not left.exists():
        return False
    shutil.rmtree(left, ignore_errors=True)
    return True


@app.task
def forget(plan: str) -> None:
    """Delete the results from the database. Any worker can do that."""
    _database(plan, "delete from result where plan = ?")


def _files(plan: str) -> Path:
    """Return the plan's folder on this worker, with its inputs. Raise Astray."""
    route = current.route
    assert route is not None
    mine = ROOT / f"worker-{current.worker.index}" / plan
    with _fetching:
        for stamp in ROOT.glob(f"worker-*/{plan}/route"):
            if stamp.parent != mine and _number(stamp) == route.number:
                raise Astray(f"{plan} is in {stamp.parent.parent.name}, not here: {mine}")
        if _number(mine / "route") != route.number:  # not here yet, or from an earlier route
            mine.mkdir(parents=True, exist_ok=True)
            (mine / "inputs.json").write_text(json.dumps(list(range(ROWS))))
            (mine / "route").write_text(str(route.number))
    return mine


def _number(stamp: Path) -> int | None:
    try:
        return int(stamp.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _database(plan: str, statement: str, *values: object) -> None:
    ROOT.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(ROOT / "results.db", timeout=60) as database:
        database.execute(
            "create table if not exists result (plan, part, value, primary key (plan, part))"
        )
        database.execute(statement, (plan, *values))
    database.close()


@contextmanager
def _noted(plan: str) -> Iterator[None]:
    """Log where and when a task ran, so that a test can check it."""
    route = current.route
    assert route is not None
    ROOT.mkdir(parents=True, exist_ok=True)
    note = {
        "plan": plan,
        "task": current.job.task,
        "worker": current.worker.index,
        "route": route.number,
    }

    def write(**more: object) -> None:
        with (ROOT / f"journal-{os.getpid()}.jsonl").open("a") as journal:
            journal.write(json.dumps({**note, **more}) + "\n")

    write(began=time.time())
    yield
    write(ended=time.time())
