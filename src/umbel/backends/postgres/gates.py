"""Declaring rules of gates and adding members of pools on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from umbel.backends.postgres.arrays import json_text, texts, without_nul
from umbel.backends.sql.gates import SqlGates
from umbel.messages import Rule


class PostgresGates(SqlGates):
    """See ``umbel.backends.gates.Gates`` for what each method promises.

    Each change is one statement, so a client that stops in between cannot hold the gates' lock.
    """

    async def declare(self, rules: Sequence[Rule], lifted: Sequence[str] = ()) -> None:
        if rules:
            by_name = {rule.name: rule for rule in rules}
            rows = await self._rows("declare", declared=json_text([*by_name.values()]))
            if rates := [name for name, kind in rows if kind == "rate"]:
                await self._rows("reset_paces", rule=texts(rates))
        if lifted:
            await self._rows("lift", rule=texts([*lifted]))

    async def add_members(
        self, pool: str, members: Mapping[str, Mapping[str, Any]], *, only: bool = False
    ) -> None:
        query = "set_members" if only else "add_members"
        await self._rows(query, pool=without_nul(pool), members=json_text(members))
