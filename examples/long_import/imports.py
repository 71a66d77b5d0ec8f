"""An import that goes on where it stopped, whatever stopped it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from umbel import Umbel, current, step

app = Umbel()
MARK = "?" if app.settings.broker.startswith("sqlite") else "%s"
"""Where a value goes in a statement, for sqlite3 and for psycopg."""
LOG = Path(os.environ.get("EXECUTED", "executed.log"))

Row = tuple[int, str]


def prepare(connection: Any) -> None:
    """An empty table. It is made in a step, so an import that goes on finds what it has done."""
    note("prepare")
    connection.execute("drop table if exists imported")
    connection.execute("create table imported (n integer not null, name text not null)")


def fetch(first: int, count: int) -> list[Row]:
    """A page from a slow source. It is only read, so it may be repeated."""
    note(f"fetch {first}")
    time.sleep(0.1)
    return [(n, f"row {n}") for n in range(first, first + count)]


def save(connection: Any, rows: list[Row]) -> int:
    """The page and the step that says so are committed together, or neither is."""
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
    """A line for each time that a step is executed, to count them at the end."""
    with LOG.open("a") as log:
        log.write(f"{what}\n")
