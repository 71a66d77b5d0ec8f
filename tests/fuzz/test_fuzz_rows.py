"""Rows written by hand: each is run, buried or rejected with a reason, and the worker goes on."""

from __future__ import annotations

from typing import Any

import pytest
from bench import Bench, Row, Sql
from hypothesis import given
from hypothesis import strategies as st
from odd_values import ANY, EVER, FILE, HUGE, MOMENTS, SERVER, briefly, odd


def rows_of(own: dict[str, tuple[Any, ...]], column: str) -> list[Row]:
    """A row for each odd value of a column."""
    return [{column: value} for value in odd(own, column)]


@pytest.mark.parametrize("column", sorted({*ANY, *FILE}))
def test_a_row_with_an_odd_column_ends_and_harms_no_other(file: Bench, column: str) -> None:
    file.check(rows_of(FILE, column))


@pytest.mark.parametrize("column", sorted({*ANY, *SERVER}))
def test_a_row_on_a_server_with_an_odd_column_ends_and_harms_no_other(
    postgres: Bench, column: str
) -> None:
    postgres.check(rows_of(SERVER, column))


# --- by state --------------------------------------------------------------------------------


def orphans(own: dict[str, tuple[Any, ...]]) -> list[Row]:
    """Rows that say they run, by a worker that never was."""
    running: Row = {"state": "running", "owner": "nobody", "worker": "w"}
    rows = [running, {**running, "worker": None}, {**running, "max_deaths": 1}]
    rows += [{**row, "worker": None, "max_deaths": limit} for row in rows[:1] for limit in (1, 0)]
    for column in ("max_deaths", "attempt", "attempts", "claimed", "worker"):
        rows += [{**running, **row} for row in rows_of(own, column)]
    for column in ("deaths", "blame"):  # each alone in its worker: suspects come back much later
        odd_ones = enumerate(rows_of(own, column))
        rows += [{**running, **row, "owner": f"{column} {at}"} for at, row in odd_ones]
    return rows


def test_rows_of_a_worker_that_never_was_end(file: Bench) -> None:
    file.check(orphans(FILE))


def test_rows_on_a_server_of_a_worker_that_never_was_end(postgres: Bench) -> None:
    postgres.check(orphans(SERVER))


COUNTS = tuple(f'{{"pay": {count}}}' for count in ("-1", "1e3", HUGE, -HUGE, 2**31 - 1, '"x"'))


def failing(own: dict[str, tuple[Any, ...]]) -> list[Row]:
    """Rows whose task fails and is tried again: what is counted there is odd."""
    rows: list[Row] = [{"sections": counts} for counts in COUNTS]
    for column in ("attempt", "attempts", "headers", "sections", "fence"):
        rows += rows_of(own, column)
    return [{"task": "fail", **row} for row in rows]


def test_rows_that_fail_and_are_tried_again_end(file: Bench) -> None:
    file.check(failing(FILE))


def test_rows_on_a_server_that_fail_and_are_tried_again_end(postgres: Bench) -> None:
    postgres.check(failing(SERVER))


@pytest.mark.parametrize("moment", [EVER, -EVER, 1e300, -1e300])
def test_a_row_for_a_day_that_never_comes_keeps_no_other_waiting(
    file: Bench, moment: float
) -> None:
    file.clear()
    job = file.insert({"state": "scheduled", "not_before": moment})
    file.goes_on([job], delay=0.01)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_row_on_a_server_for_a_day_that_never_comes_keeps_no_other_waiting(
    postgres: Bench, moment: Sql
) -> None:
    postgres.clear()
    job = postgres.insert({"state": "scheduled", "not_before": moment})
    postgres.goes_on([job], delay=0.01)


# --- any mixture -----------------------------------------------------------------------------


def mixtures(own: dict[str, tuple[Any, ...]]) -> st.SearchStrategy[list[Row]]:
    """Rows with odd values in several columns."""
    columns = sorted({*ANY, *own} - {"id", "unique_key"})
    values = {column: st.sampled_from(odd(own, column)) for column in columns}
    return st.lists(st.fixed_dictionaries({}, optional=values), min_size=1, max_size=12)


# Shrinking would repeat a hang again and again; the failure names the row anyway.
@briefly
@given(rows=mixtures(FILE))
def test_rows_odd_in_many_ways_end(file: Bench, rows: list[Row]) -> None:
    file.check(rows)


@briefly
@given(rows=mixtures(SERVER))
def test_rows_on_a_server_odd_in_many_ways_end(postgres: Bench, rows: list[Row]) -> None:
    postgres.check(rows)
