"""Gates and members of pools. Declaring rules and adding members differ per server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from umbel.backends.gates import Condition, Gate, PoolMember
from umbel.backends.sql.role import SqlRole
from umbel.backends.sql.statements import Row
from umbel.messages.columns import read_rule


class SqlGates(SqlRole):
    """The part of ``umbel.backends.gates.Gates`` that both servers share."""

    files = ("gates.sql",)

    async def gates(self, rule: str = "", limit: int = 1000) -> list[Gate]:
        await self._fold()
        return [_gate(*row) for row in await self._rows("gates", rule=rule or None, limit=limit)]

    async def remove_members(self, pool: str, names: Sequence[str]) -> list[str]:
        return await self._change("remove_members", pool, names)

    async def set_condition(
        self, pool: str, names: Sequence[str], condition: Condition
    ) -> list[str]:
        return await self._change("set_condition", pool, names, condition=condition)

    async def members(self, pool: str = "") -> list[PoolMember]:
        await self._fold()
        return [_member(row) for row in await self._rows("members", pool=pool or None)]

    async def quarantine(self, pool: str, member: str, delay: float) -> None:
        await self._rows("quarantine", pool=pool, name=member, delay=float(delay))

    async def claim_due_checks(self, pool: str, delay: float) -> list[PoolMember]:
        rows = await self._rows("claim_due_checks", pool=pool, delay=float(delay))
        return [_member(row) for row in rows]

    async def _change(
        self, query: str, pool: str, names: Sequence[str], **values: Any
    ) -> list[str]:
        """Change members and return the names of those that were changed."""
        rows = await self._rows(query, pool=pool, name=self._database.texts([*names]), **values)
        changed = {row[0] for row in rows}
        return [name for name in names if name in changed]

    async def _fold(self) -> None:
        if "fold" in self._sql:  # PostgreSQL defers the bookkeeping of freed slots
            await self._rows("fold")


def _gate(key: str, declared: str, imposed: int | None, held: int, waiting: int) -> Gate:
    rule = read_rule(declared, imposed)
    return Gate(
        key=key,
        kind=rule.kind,
        capacity=rule.capacity if rule.kind == "limit" else None,
        rates=rule.rates,
        burst=rule.burst,
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
