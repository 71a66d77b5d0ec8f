"""Rules of gates and members of pools on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from umbel.backends.gates import Condition, Gate, PoolMember
from umbel.backends.queries import load
from umbel.backends.sqlite.database import Database
from umbel.backends.sqlite.savepoints import writing
from umbel.clock import Clock
from umbel.messages import TOKEN, Rule, rule_of
from umbel.messages.columns import read_rule

SQL = load("umbel.backends.sqlite", "gates.sql")

T = TypeVar("T")

_json = msgspec.json.Encoder().encode


class SqliteGates:
    """See ``stores.gates.Gates`` for what each method promises."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock

    async def declare(self, rules: Sequence[Rule], lifted: Sequence[str] = ()) -> None:
        every = [*rules, *(Rule(name=name, kind="open") for name in lifted)]

        def write(cursor: sqlite3.Cursor) -> None:
            for rule in every:
                row = {**self._here(), "rule": rule.name, "declared": _json(rule).decode()}
                query = "lift" if rule.kind == "open" else "declare"
                if cursor.execute(SQL[query], row).rowcount:
                    self._look(cursor, rule.name)

        await self._write(write)

    async def impose(self, rule: str, capacity: int | None) -> bool:
        def write(cursor: sqlite3.Cursor) -> bool:
            row = {**self._here(), "rule": rule, "capacity": capacity}
            done = cursor.execute(SQL["impose"], row).rowcount == 1
            self._look(cursor, rule)
            return done

        return await self._write(write)

    async def gates(self, rule: str = "", limit: int = 1000) -> list[Gate]:
        def read(connection: sqlite3.Connection) -> list[Gate]:
            rules = connection.execute(SQL["rules"], self._here()).fetchall()
            known = {name: (read_rule(text, imposed), imposed) for name, text, imposed in rules}
            wanted = {**self._here(), "rule": rule or None, "limit": limit}
            rows = connection.execute(SQL["gates"], {**wanted, "token": TOKEN}).fetchall()
            return [_gate(key, *known[rule_of(key)], held, n) for key, held, n in rows]

        return await self._database.run(read)

    async def enrol(
        self, pool: str, members: Mapping[str, Mapping[str, Any]], *, only: bool = False
    ) -> None:
        def write(cursor: sqlite3.Cursor) -> None:
            for name, data in members.items():
                row = {**self._here(), "pool": pool, "name": name, "data": _json(data).decode()}
                cursor.execute(SQL["enrol_coded" if only else "enrol"], row)
            if only:
                names = _json([*members]).decode()
                cursor.execute(SQL["drop"], {**self._here(), "pool": pool, "names": names})

        await self._write(write)

    async def dismiss(self, pool: str, names: Sequence[str]) -> list[str]:
        return await self._each(SQL["dismiss"], pool, names)

    async def turn(self, pool: str, names: Sequence[str], condition: Condition) -> list[str]:
        return await self._each(SQL["turn"], pool, names, condition=condition)

    async def members(self, pool: str = "") -> list[PoolMember]:
        return await self._members(SQL["members"], {**self._here(), "pool": pool or None})

    async def suspect(self, pool: str, member: str, delay: float) -> None:
        await self._each(SQL["suspect"], pool, [member], check_at=self._clock.now() + delay)

    async def suspects(self, pool: str, delay: float) -> list[PoolMember]:
        now = self._clock.now()
        row = {**self._here(), "pool": pool, "now": now, "later": now + delay}
        return await self._members(SQL["suspects"], row)

    async def close(self) -> None:
        await self._database.close()

    async def _members(self, query: str, row: dict[str, Any]) -> list[PoolMember]:
        def write(cursor: sqlite3.Cursor) -> list[PoolMember]:
            return [_member(found) for found in cursor.execute(query, row).fetchall()]

        return await self._write(write)

    async def _each(self, query: str, pool: str, names: Sequence[str], **values: Any) -> list[str]:
        def write(cursor: sqlite3.Cursor) -> list[str]:
            here = {**self._here(), "pool": pool, **values}
            return [
                name for name in names if cursor.execute(query, {**here, "name": name}).rowcount
            ]

        return await self._write(write)

    async def _write(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        def write(connection: sqlite3.Connection) -> T:
            with writing(connection) as cursor:
                return work(cursor)

        return await self._database.run(write, writes=True)

    def _look(self, cursor: sqlite3.Cursor, rule: str) -> None:
        """Somebody may pass the gates of a rule that could not before."""
        cursor.execute(
            SQL["look"],
            {
                **self._here(),
                "rule": rule,
                "first": f"{rule}{TOKEN}",
                "last": f"{rule}{chr(ord(TOKEN) + 1)}",
            },
        )

    def _here(self) -> dict[str, Any]:
        return {"namespace": self._namespace}


def _gate(key: str, rule: Rule, imposed: int | None, held: int, waiting: int) -> Gate:
    return Gate(
        key=key,
        kind=rule.kind,
        capacity=rule.capacity if rule.kind == "limit" else None,
        rates=rule.rates,
        imposed=imposed is not None,
        held=held,
        waiting=waiting,
    )


def _member(row: tuple[Any, ...]) -> PoolMember:
    pool, name, data, condition, job, fence, failures = row
    return PoolMember(
        pool=pool,
        name=name,
        data=msgspec.json.decode(data),
        condition="drained" if condition == "leaving" else condition,
        job=job,
        fence=fence,
        failures=failures,
    )
