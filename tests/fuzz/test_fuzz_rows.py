"""Rows written by hand: each is run, buried or rejected with a reason, and the worker goes on."""

from __future__ import annotations

from typing import Any

import pytest
from bench import Bench, Row, Sql
from hostile import nested
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from umbel.messages import fresh_id

DEEP = nested(900)
HUGE = 2**63 - 1
EVER = float("inf")

JSON_COLUMN = (
    *("[]", "5", "null", '"x"', DEEP, '{"a": 1, "a": 2}', '{"": null}', '{"x": [1, {"y": 1e300}]}'),
    '{"n": 99999999999999999999999999}',
)
HEADERS = (
    *('{"timeout": "nan"}', '{"timeout": -1}', '{"track": {}}', '{"malformed": "x"}'),
    *('{"retry": 5}', '{"retry": "{\\"times\\": -1}"}', '{"retry": {"times": 1, "first": 1e300}}'),
)
STORIES = (
    '[{"number": 1, "worker": "w", "started": 1e300, "finished": -1e300, "ended": "retry"}]',
    '[{"number": 1, "worker": null, "started": null, "finished": null, "ended": "lost"}]',
    *("[[]]", "{}", f"[{', '.join(['{}'] * 150)}]"),
)
BODIES = (
    *(b"", b"\x00", b"\xff\xfe", b"[", b"null", b"[1]", b'{"args": 5}', b'{"kwargs": [1]}'),
    *(b'{"args": [], "kwargs": {"\\u0000": 1}}', DEEP.encode(), b'{"args": [1, 2]}'),
    b'{"args": ["' + b"x" * 1_100_000 + b'"]}',
)
ANY: dict[str, tuple[Any, ...]] = {
    "task": ("nobody", "🌱" * 255, "\x1b[31m", "work ", "' or 1=1 --"),
    "type": ("umbel.event", "umbel.document"),
    "kind": ("io", "cpu"),
    "content_type": ("", "x" * 5_000, "application/msgpack", "application/x-umbel-pickle", "\x1b"),
    "body": BODIES,
    "deaths": (-1, 2**31 - 1, -(2**31)),
    "blame": (-1, 2**31 - 1, -(2**31)),
    "max_deaths": (0, -1, 2**31 - 1, -(2**31)),
    "attempt": (0, -1, 2**31 - 1, -(2**31)),
    "unique_key": ("", "x" * 2_000, "\x1b"),
    "traceparent": ("", "-", "---", "a-b-c-d", "x" * 5_000),
    "headers": (*JSON_COLUMN, *HEADERS),
    "sections": JSON_COLUMN,
    "attempts": (*JSON_COLUMN, *STORIES),
    "fence": (-1, HUGE - 2, HUGE),
    "worker": ("", "x" * 2_000),
    "cancel_reason": ("", "x" * 2_000),
}
"""Odd values by column, as both databases take them."""
FILE: dict[str, tuple[Any, ...]] = {
    "id": ("x" * 36, "é" * 36, "'" * 36, fresh_id().upper()),
    "task": ("a\x00b", Sql("cast(x'ff41' as text)")),
    "content_type": ("\x00",),
    "priority": (HUGE, -HUGE),
    "created": (EVER, -EVER, 1e300, -1.0, 0.0),
    "not_before": (EVER, -EVER, 1e300),
    "expires": (EVER, -EVER, 1e300, 0.0),
    "attempt": (HUGE, -HUGE),
    "deaths": (HUGE, -HUGE),
    "unique_key": ("a\x00b",),
    "traceparent": ("\x00",),
    "claimed": (EVER, 1e300),
    "progress_done": (EVER, -1e300),
}
MOMENTS = tuple(
    Sql(f"'{moment}'") for moment in ("infinity", "-infinity", "294276-12-31", "4714-11-24 BC")
)
SERVER: dict[str, tuple[Any, ...]] = {
    "id": (Sql("'00000000-0000-0000-0000-000000000000'"),),
    "priority": (32767, -32768),
    **dict.fromkeys(("created", "not_before", "expires", "claimed"), MOMENTS),
    "progress_done": (EVER, float("nan")),
    "progress_of": (EVER, float("nan")),
}


def odd(own: dict[str, tuple[Any, ...]], column: str) -> tuple[Any, ...]:
    """The odd values that a database takes in a column."""
    return (*ANY.get(column, ()), *own.get(column, ()))


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
briefly = settings(max_examples=6, phases=(Phase.explicit, Phase.generate))


@briefly
@given(rows=mixtures(FILE))
def test_rows_odd_in_many_ways_end(file: Bench, rows: list[Row]) -> None:
    file.check(rows)


@briefly
@given(rows=mixtures(SERVER))
def test_rows_on_a_server_odd_in_many_ways_end(postgres: Bench, rows: list[Row]) -> None:
    postgres.check(rows)
