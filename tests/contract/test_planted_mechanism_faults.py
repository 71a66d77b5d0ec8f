"""Faults in coordination and joins, and the tests of the suites that detect each of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from sqlite_adapters import open_sqlite

from umbel.backends.sqlite import schema
from umbel.backends.sqlite.database import Database, SqliteFile
from umbel.control import Election
from umbel.testing import Adapters, FakeClock
from umbel.testing.stores import CoordinationSuite, JoinSuite

Plant = Callable[[pytest.MonkeyPatch], None]


def change_schema(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Replace text in the schema of files that are created from now on."""
    plain = schema.migrations()
    assert any(old in text for _, text in plain), "the schema has changed: plant the fault anew"
    changed = [(number, text.replace(old, new)) for number, text in plain]
    monkeypatch.setattr(schema, "migrations", lambda: changed)


def count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that ends a second time is counted a second time."""
    change_schema(
        monkeypatch,
        "update job_edge set state = new.state\n",
        "update job_edge set position = position\n",
    )


def count_only_in_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only jobs that a worker settled are counted."""
    change_schema(
        monkeypatch,
        "after insert on record\n  when exists",
        "after insert on record\n  when new.worker is not null and exists",
    )


def forget_lapses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries whose lease has lapsed are still there."""
    plain = Database.queries

    def queries(self: Database, *files: str) -> dict[str, str]:
        found = plain(self, *files)
        changes = {"until > :now": "true", "until <= :now": "false"}
        for old, new in changes.items():
            found = {name: sql.replace(old, new) for name, sql in found.items()}
        return found

    monkeypatch.setattr(Database, "queries", queries)


def act_without_the_check_of_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader commits without checking that it still leads."""
    monkeypatch.setattr(Election, "checks", {})


@pytest.mark.parametrize(
    ("plant", "suite", "test"),
    [
        (count_twice, JoinSuite, "test_a_part_that_ends_twice_is_counted_once"),
        (count_only_in_settle, JoinSuite, "test_a_part_that_is_cancelled_while_it_waits_ends"),
        (count_only_in_settle, JoinSuite, "test_a_part_that_expires_ends"),
        (
            forget_lapses,
            CoordinationSuite,
            "test_another_candidate_leads_when_the_lease_has_lapsed",
        ),
        (
            act_without_the_check_of_the_leader,
            CoordinationSuite,
            "test_a_commit_of_a_leader_that_was_replaced_has_no_effect",
        ),
    ],
)
def test_a_planted_fault_is_found_by_the_test_that_names_it(
    plant: Plant,
    suite: type,
    test: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def open_one() -> AbstractAsyncContextManager[Adapters]:
        path = str(tmp_path_factory.mktemp("planted") / "umbel.db")
        return open_sqlite(lambda: SqliteFile(path, synchronous="off"), FakeClock())

    run = getattr(suite(), test)
    run(open_one)  # without the fault it passes
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        run(open_one)
