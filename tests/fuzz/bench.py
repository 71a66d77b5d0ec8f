"""A worker in the test's process, rows written by hand beside it, and what has to hold then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from command import command, environment
from hostile import assert_readable

from integration.running import DEADLINE, Places, Running, execute, until, working
from umbel import Retry, State, Umbel, retry
from umbel.messages import fresh_id

Row = dict[str, Any]
READING = (
    ("jobs", "list", "--limit", "1000"),
    ("jobs", "list", "--limit", "1000", "--json"),
    *(("queues",), ("workers",), ("health", "--json")),
)


class Sql(str):
    """A value as an expression of the database's own."""

    __slots__ = ()


class Bench:
    """An application, its worker, and what a test does with both."""

    def __init__(self, app: Umbel, running: Running) -> None:
        self.app = app
        self.running = running
        self._good = app.registry.find("good")

    # --- what somebody with a shell does ------------------------------------------------------

    def insert(self, row: Row, table: str = "job") -> str:
        """One row written by hand. Gives its id."""
        whole: Row = {"id": fresh_id(), "namespace": self.app.settings.namespace}
        if table in ("job", "record"):
            whole |= {"queue": "default", "task": "work", "body": b"{}"}
        if table == "job" and self.app.settings.broker.startswith("sqlite"):
            whole["created"] = 1.0
        if table == "worker":
            whole["incarnation"] = whole.pop("id")
        whole |= row
        marks = ", ".join(v if isinstance(v, Sql) else "?" for v in whole.values())
        given = [value for value in whole.values() if not isinstance(value, Sql)]
        self.execute(f"insert into $schema.{table} ({', '.join(whole)}) values ({marks})", *given)
        return str(whole.get("id", "")).strip("'" if isinstance(whole.get("id"), Sql) else "")

    def publish(self, event: Any) -> str | None:
        """Publish by SQL, as another language would. None when the function names what is wrong."""
        sql = "select $schema.publish_event(?::jsonb)::text"
        try:
            [(job,)] = self.execute(sql, json.dumps(event))
        except psycopg.Error as error:
            text = error.diag.message_primary or ""
            assert text.partition(": ")[0].isidentifier(), f"no field is named: {text}"
            return None
        return str(job)

    def clear(self) -> None:
        """Forget every job, and every worker but the real one."""
        here = self.app.settings.namespace
        for table in ("job", "record"):
            self.execute(f"delete from $schema.{table} where namespace = ?", here)
        self.execute("delete from $schema.worker where namespace = ? and name <> 'worker'", here)

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run SQL by hand."""
        return execute(self.app, sql, *values)

    # --- what has to hold ---------------------------------------------------------------------

    def check(self, rows: Sequence[Row]) -> None:
        """Every row ends, with a reason unless it ran; a job published then runs."""
        self.clear()
        jobs = [self.insert(row) for row in rows]
        self.goes_on(jobs)
        for job, row in zip(jobs, rows, strict=True):
            self.ends(job, row)
        self.look(jobs)

    def goes_on(self, jobs: Sequence[str], **options: Any) -> None:
        """A job published now runs, and whatever is in the tables can be looked at."""
        self.look(jobs)
        assert self._good.options(**options).delay().get(timeout=DEADLINE) == "good"
        assert self.running.alive

    def ends(self, job: str, row: object) -> None:
        """A job becomes final, and its record says why when it did not run."""
        handle = self.app.handle(job)
        until(lambda: handle.state.finished, f"the row with {str(row)[:200]} to end")
        record = handle.record()
        assert record.state in (State.SUCCEEDED, State.BURIED, State.EXPIRED), record
        if record.state is not State.SUCCEEDED:
            assert_readable(record.reason)

    def is_due(self, job: str) -> bool:
        """Whether the worker has to take it now."""
        sql = "select state, queue, namespace from $schema.job where id = ?"
        here = self.app.settings.namespace
        return all(
            state != "scheduled" and queue == "default" and namespace == here
            for state, queue, namespace in self.execute(sql, job)
        )

    def look(self, jobs: Sequence[str]) -> None:
        """Every reading command works. That every job can be shown is tested without a database."""
        shown = [("jobs", "show", "--", job) for job in jobs[:2]]
        for words in (*READING, *shown):
            answer = self.command(*words)
            assert answer.code in ((0, 1) if words[0] == "health" else (0,)), (words, answer)
            assert answer.out.strip(), words

    def command(self, *words: str) -> Any:
        """A command about this application's server."""
        settings = self.app.settings
        with environment({"UMBEL_URL": settings.broker, "UMBEL_NAMESPACE": settings.namespace}):
            return command(words)


@contextmanager
def bench(place: str, folder: Path) -> Iterator[Bench]:
    """A bench in a file or on a server."""
    places = Places()
    try:
        # Jobs of tasks that there are not have to end, too.
        with places.app(place, folder, missing_task_days=0.1 / 86_400) as app:
            if place == "file":
                asyncio.run(app.backend.migrate())
            _add_tasks(app)
            # Long enough for a machine that stands still for a moment: jobs of a worker that died,
            # with an odd number of deaths before, come back an hour later.
            with working(app, lease=6.0) as running:
                yield Bench(app, running)
    finally:
        places.close()


def _add_tasks(app: Umbel) -> None:
    @app.task(name="work", retry=Retry(1, first=0.001))
    def work() -> str:
        return "worked"

    @app.task(name="fail", retry=Retry(1, first=0.001))
    def fail() -> None:
        with retry(1, name="pay", first=0.001):
            raise ValueError("paid in vain")

    @app.task(name="good")
    async def good() -> str:
        return "good"
