"""Publishing from SQL, and rows by hand in the tables that only Umbel should write."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from bench import Bench, Row, Sql
from hostile import texts
from hypothesis import given
from hypothesis import strategies as st
from odd_values import ANY, EVER, FILE, JSON_COLUMN, SERVER, briefly, odd

plain = texts.map(lambda text: text.replace("\x00", "").encode("utf-8", "replace").decode())
values = st.recursive(
    st.none() | st.booleans() | plain | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
"""Values as jsonb holds them."""
moments = st.sampled_from(["-infinity", "2026-01-31", "4714-11-24 BC", "now", "294277-01-01", ""])
NAMES = (
    *("specversion", "id", "type", "subject", "data", "data_base64", "datacontenttype", "queue"),
    *("kind", "priority", "attempt", "maxdeaths", "uniquekey", "onconflict", "traceparent"),
    *("retry", "timeout", "track", "malformed", ""),
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(NAMES, values),
    **dict.fromkeys(("time", "notbefore", "expiry"), moments | values),
}


@briefly
@given(changes=st.lists(st.fixed_dictionaries({}, optional=FIELDS), min_size=1, max_size=4))
def test_the_sql_function_takes_an_event_that_ends_or_names_the_field(
    postgres: Bench, changes: list[Row]
) -> None:
    postgres.clear()
    here = postgres.app.settings.namespace
    whole = {"type": "umbel.command", "subject": "work", "data": {}, "namespace": here}
    one_each = [{name: value} for change in changes for name, value in change.items()]
    jobs = [postgres.publish(whole | change) for change in (*changes, *one_each)]
    taken = [job for job in jobs if job is not None]
    postgres.goes_on(taken)
    for job in filter(postgres.is_due, taken):
        postgres.ends(job, job)


@given(event=values)
@briefly
def test_the_sql_function_refuses_what_is_no_event(postgres: Bench, event: Any) -> None:
    assert postgres.publish(event) is None


CALLS = ("[1, 2]", "[", "5", '{"a": 1}', "", "null", '"x"', "[1e999]", "[NaN]", "x" * 300)


@pytest.mark.parametrize("column", ["args", "kwargs", "task", "queue", "priority", "delay", "id"])
def test_the_publish_view_takes_a_job_that_ends_or_refuses_it(file: Bench, column: str) -> None:
    file.clear()
    here = file.app.settings.namespace
    for value in (*CALLS, "work", 0, -1, 1.5, EVER, 2**63 - 1, b"\xff", None):
        row = {"task": "work", "namespace": here} | {column: value}
        marks = ", ".join("?" * len(row))
        try:
            file.execute(f"insert into publish ({', '.join(row)}) values ({marks})", *row.values())
        except sqlite3.Error:
            continue
    jobs = [str(job) for (job,) in file.execute("select id from job where namespace = ?", here)]
    jobs += [str(job) for (job,) in file.execute("select id from record where namespace = ?", here)]
    file.goes_on(jobs)
    for job in filter(file.is_due, jobs):
        file.ends(job, job)


# --- records ---------------------------------------------------------------------------------

RECORD: Row = {
    "kind": "",
    "type": "umbel.command",
    "content_type": "application/json",
    **dict.fromkeys(("priority", "attempt", "deaths", "max_deaths", "fence"), 1),
    "state": "buried",
    "headers": "{}",
    "attempts": "[]",
}
FAILURES = ("{}", "[]", '{"type": "x", "message": "y"}', '{"type": 5, "message": null}', "5")


@pytest.mark.parametrize("state", ["succeeded", "buried"])
def test_records_of_any_kind_are_shown_and_queued_anew(file: Bench, state: str) -> None:
    now = file.app.clock.now()
    check_records(file, FILE, {"state": state, "created": now, "finished": now})


@pytest.mark.parametrize("state", ["succeeded", "buried"])
def test_records_on_a_server_of_any_kind_are_shown_and_queued_anew(
    postgres: Bench, state: str
) -> None:
    now = Sql("now()")
    check_records(postgres, SERVER, {"state": state, "created": now, "finished": now})


def check_records(bench: Bench, own: dict[str, tuple[Any, ...]], base: Row) -> None:
    """Every record is shown; buried ones are queued anew, and end again."""
    bench.clear()
    columns = sorted({*ANY, *own} - {"id", "blame", "sections", "cancel_reason", "fence"})
    changes: list[Row] = [{column: v} for column in columns for v in odd(own, column)[::2]]
    changes += [{"failure": text} for text in FAILURES]
    if base["state"] == "buried":  # others are pruned when they are old
        changes += [{"finished": v} for v in odd(own, "created")]
    changes += [{"result": b"\xff", "result_type": kind} for kind in (None, "", "x")]
    jobs = [bench.insert({**RECORD, **base, **change}, "record") for change in changes]
    bench.look(jobs)
    if base["state"] == "buried":
        assert bench.command("jobs", "retry", "--all").code == 0
        for job, change in zip(jobs, changes, strict=True):
            bench.ends(job, change)
    bench.goes_on(jobs)


# --- workers ---------------------------------------------------------------------------------

ENTRIES = (*JSON_COLUMN, '{"incarnation": 5}', '{"name": "x", "lease": 1e300}')


def test_entries_of_workers_that_cannot_be_read_harm_no_other(file: Bench) -> None:
    file.clear()
    for entry in ENTRIES:
        file.insert({"entry": entry, "name": "x", "started": EVER, "beaten": -EVER}, "worker")
    file.goes_on([])


def test_entries_on_a_server_of_workers_that_cannot_be_read_harm_no_other(postgres: Bench) -> None:
    postgres.clear()
    for entry in ENTRIES:
        postgres.insert({"entry": entry, "name": "x", "started": Sql("'-infinity'")}, "worker")
    postgres.goes_on([])
