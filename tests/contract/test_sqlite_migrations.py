"""Several migrations of a SQLite file: from a folder of the test, because Umbel has one so far."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from umbel.backends.sqlite import schema
from umbel.errors import SchemaError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "migrations"
    folder.mkdir()
    (folder / "0001_first.sql").write_text("create table item (name text);")
    monkeypatch.setattr(schema, "MIGRATIONS", folder)
    return folder


def test_new_migrations_are_applied_in_order_and_once(folder: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        schema.migrate(connection, path)
        connection.execute("insert into item values ('old')")
        (folder / "0010_third.sql").write_text("update item set color = 'red';")
        (folder / "0002_second.sql").write_text("alter table item add column color text;")
        schema.migrate(connection, path)
        schema.migrate(connection, path)
        assert connection.execute("select name, color from item").fetchall() == [("old", "red")]
    assert schema.version_of(path) == 10


def test_a_migration_that_fails_leaves_the_version_before(folder: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        schema.migrate(connection, path)
        (folder / "0002_second.sql").write_text("create table other (name text);")
        (folder / "0003_third.sql").write_text("create table item (name text);")
        with pytest.raises(sqlite3.OperationalError, match="already exists"):
            schema.migrate(connection, path)
        assert not connection.in_transaction
        tables = connection.execute("select name from sqlite_schema").fetchall()
    assert tables == [("item",)]
    assert schema.version_of(path) == 1


def test_a_file_with_a_newer_schema_is_refused(folder: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma user_version = 7")
        with pytest.raises(SchemaError, match="has schema 7, this Umbel knows 1"):
            schema.migrate(connection, path)
