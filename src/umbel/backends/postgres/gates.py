"""Rules of gates and members of pools on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from umbel.backends.gates import Condition, Gate, PoolMember
from umbel.backends.postgres.arrays import document, storable, texts
from umbel.backends.postgres.database import Database
from umbel.backends.postgres.statements import Row
from umbel.clock import Clock
from umbel.messages import Rule
from umbel.messages.columns import read_rule


class PostgresGates:
    """See ``stores.gates.Gates`` for what each method promises.

    Each change is one statement, so that nobody who stops half-way keeps the gates shut.
    """

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock
        self._sql = database.home.queries("gates.sql")

    async def declare(self, rules: Sequence[Rule], lifted: Sequence[str] = ()) -> None:
        if rules:
            by_name = {rule.name: rule for rule in rules}
            await self._rows("declare", declared=document([*by_name.values()]))
        if lifted:
            await self._rows("lift", rule=texts([*lifted]))

    async def impose(self, rule: str, capacity: int | None) -> bool:
        return bool(await self._rows("impose", rule=storable(rule), capacity=capacity))

    async def gates(self, rule: str = "", limit: int = 1000) -> list[Gate]:
        await self._rows("fold")
        return [_gate(*row) for row in await self._rows("gates", rule=rule or None, limit=limit)]

    async def enrol(
        self, pool: str, members: Mapping[str, Mapping[str, Any]], *, only: bool = False
    ) -> None:
        query = "enrol_coded" if only else "enrol"
        await self._rows(query, pool=storable(pool), members=document(members))

    async def dismiss(self, pool: str, names: Sequence[str]) -> list[str]:
        return await self._each("dismiss", pool, names)

    async def turn(self, pool: str, names: Sequence[str], condition: Condition) -> list[str]:
        return await self._each("turn", pool, names, condition=condition)

    async def members(self, pool: str = "") -> list[PoolMember]:
        await self._rows("fold")
        return [_member(row) for row in await self._rows("members", pool=pool or None)]

    async def suspect(self, pool: str, member: str, delay: float) -> None:
        await self._rows("suspect", pool=pool, name=member, delay=float(delay))

    async def suspects(self, pool: str, delay: float) -> list[PoolMember]:
        rows = await self._rows("suspects", pool=pool, delay=float(delay))
        return [_member(row) for row in rows]

    async def close(self) -> None:
        await self._database.close()

    async def _each(self, query: str, pool: str, names: Sequence[str], **values: Any) -> list[str]:
        rows = await self._rows(query, pool=pool, name=texts([*names]), **values)
        found = {row[0] for row in rows}
        return [name for name in names if name in found]

    async def _rows(self, query: str, **values: Any) -> list[Row]:
        return await self._database.rows(self._sql[query], {"namespace": self._namespace, **values})


def _gate(key: str, declared: str, imposed: int | None, held: int, waiting: int) -> Gate:
    rule = read_rule(declared, imposed)
    return Gate(
        key=key,
        kind=rule.kind,
        capacity=rule.capacity if rule.kind == "limit" else None,
        rates=rule.rates,
        imposed=imposed is not None,
        held=held,
        waiting=waiting,
    )


def _member(row: Row) -> PoolMember:
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
