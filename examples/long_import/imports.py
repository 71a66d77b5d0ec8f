"""An import that continues where it stopped."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from umbel import Umbel, current, step

app = Umbel()
MARK = "?" if app.settings.broker.startswith("sqlite") else "%s"
"""The placeholder for a value in a statement, for sqlite3 or for psycopg."""
LOG = Path(os.environ.get("EXECUTED", "executed.log"))

Row = tuple[int, str]


def prepare(connection: Any) -> None:
    """Create an empty table. This is a step, so an import that continues does not repeat it."""
    note("prepare")
    connection.execute("drop table if exists imported")
    connection.execute("create table imported (n integer not null, name text not null)")


def fetch(first: int, count: int) -> list[Row]:
    """Return a page from a slow source. It only reads, so it can be repeated."""
    note(f"fetch {first}")
    time.sleep(0.1)
    return [(n, f"row {n}") for n in range(first, first + count)]


def save(connection: Any, rows: list[Row]) -> int:
    """Save a page. The rows and the step are committed in one transaction."""
    note(f"save {rows[0][0]}")
    for row in rows:
        connection.execute(f"insert into imported (n, name) values ({MARK}, {MARK})", row)
    return len(rows)


@app.task(interruptible=True)
def import_rows(rows: int, page: int) -> int:
    step.transaction(prepare)
    done = 0
    for first in range(0, rows, page):
        found = step(fetch, first, min(page, rows - first))
        done += step.transaction(save, found)
        current.progress(done, of=rows)
    return done


def note(what: str) -> None:
    """Log that a step was executed, to count the executions at the end."""
    with LOG.open("a") as log:
        log.write(f"{what}\n")
