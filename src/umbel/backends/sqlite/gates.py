"""Declaring rules of gates and adding members of pools on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from umbel.backends.queries import load
from umbel.backends.sql.gates import SqlGates
from umbel.backends.sqlite.database import Database
from umbel.messages import TOKEN_SEPARATOR, Rule

SQL = load("umbel.backends.sqlite", "gates.sql")

_json = msgspec.json.Encoder().encode


class SqliteGates(SqlGates):
    """See ``umbel.backends.gates.Gates`` for what each method promises."""

    _database: Database

    async def declare(self, rules: Sequence[Rule], lifted: Sequence[str] = ()) -> None:
        declared = [*rules, *(Rule(name=name, kind="open") for name in lifted)]

        def write(cursor: sqlite3.Cursor) -> None:
            for rule in declared:
                row = self._values(rule=rule.name, declared=_json(rule).decode())
                query = "lift" if rule.kind == "open" else "declare"
                if cursor.execute(SQL[query], row).rowcount:
                    self._check_gates(cursor, rule.name)
                    if rule.kind == "rate":
                        cursor.execute(SQL["reset_paces"], self._bounds(rule.name))

        await self._database.write(write)

    async def add_members(
        self, pool: str, members: Mapping[str, Mapping[str, Any]], *, only: bool = False
    ) -> None:
        def write(cursor: sqlite3.Cursor) -> None:
            for name, data in members.items():
                row = self._values(pool=pool, name=name, data=_json(data).decode())
                cursor.execute(SQL["add_declared_member" if only else "add_member"], row)
            if only:
                names = _json([*members]).decode()
                cursor.execute(SQL["remove_undeclared"], self._values(pool=pool, names=names))

        await self._database.write(write)

    def _check_gates(self, cursor: sqlite3.Cursor, rule: str) -> None:
        """Check the gates of a rule again: more jobs may pass than before."""
        cursor.execute(SQL["check_gates"], self._bounds(rule))

    def _bounds(self, rule: str) -> dict[str, Any]:
        """Return the values of a query for all gates of a rule, with and without tokens."""
        first, last = f"{rule}{TOKEN_SEPARATOR}", f"{rule}{chr(ord(TOKEN_SEPARATOR) + 1)}"
        return self._values(rule=rule, first=first, last=last)
