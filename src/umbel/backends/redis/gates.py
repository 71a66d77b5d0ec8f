"""Rules of gates and members of pools on Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import msgspec

from umbel.backends.gates import Condition, Gate, PoolMember
from umbel.backends.redis.database import Database
from umbel.backends.redis.record_rows import read_data
from umbel.backends.redis.scripts import pack, pack_bytes, root_of, scripts
from umbel.backends.redis.values import integer, optional_text, text
from umbel.clock import Clock
from umbel.messages import TOKEN_SEPARATOR, Rule, rule_of
from umbel.messages.columns import read_rule

LUA = scripts("gates.lua", "pool_members.lua")

_PORTION = 1000
_AFTER_TOKEN = chr(ord(TOKEN_SEPARATOR) + 1)
_json = msgspec.json.Encoder().encode


class RedisGates:
    """See ``umbel.backends.gates.Gates`` for what each method guarantees."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._root = root_of(namespace)

    async def declare(self, rules: Sequence[Rule], lifted: Sequence[str] = ()) -> None:
        all_rules = [*rules, *(Rule(name=name, kind="open") for name in lifted)]
        parts = [
            part
            for rule in all_rules
            for part in (rule.name, pack_bytes(_json(rule)), rule.kind == "open")
        ]
        await self._run("declare", *parts)

    async def gates(self, rule: str = "", limit: int = 1000) -> list[Gate]:
        known = await self._rules()
        names = sorted(name for name in known if rule in ("", name))[:limit]
        found: dict[str, Gate] = {}
        first, last = _lex_range(rule)
        for portion in _in_portions(names):
            for key, held, waiting in await self._run("gates", portion, first, last, 0):
                found[text(key)] = _gate(text(key), *known[text(key)], held, waiting)
        while len(found) < limit + len(names):  # in portions: there may be one gate for each user
            rows = await self._run("gates", [], first, last, _PORTION)
            for key, held, waiting in rows:
                name = rule_of(text(key))
                if name in known:
                    found[text(key)] = _gate(text(key), *known[name], held, waiting)
            if len(rows) < _PORTION:
                break
            first = f"({text(rows[-1][0])}"
        return [found[key] for key in sorted(found)[:limit]]

    async def add_members(
        self, pool: str, members: Mapping[str, Mapping[str, Any]], *, only: bool = False
    ) -> None:
        parts = [part for name, data in members.items() for part in (name, pack_bytes(_json(data)))]
        await self._run("add_members", pool, only, *parts)

    async def remove_members(self, pool: str, names: Sequence[str]) -> list[str]:
        return [text(name) for name in await self._run("remove_members", pool, *names)]

    async def set_condition(
        self, pool: str, names: Sequence[str], condition: Condition
    ) -> list[str]:
        return [text(name) for name in await self._run("set_condition", pool, condition, *names)]

    async def members(self, pool: str = "") -> list[PoolMember]:
        return [_member(row) for row in await self._run("members", pool)]

    async def quarantine(self, pool: str, member: str, delay: float) -> None:
        await self._run("quarantine", pool, member, float(delay))

    async def claim_due_checks(self, pool: str, delay: float) -> list[PoolMember]:
        return [_member(row) for row in await self._run("claim_due_checks", pool, float(delay))]

    async def close(self) -> None:
        await self._database.close()

    async def _rules(self) -> dict[str, tuple[Rule, int | None]]:
        """Return the rules by name, each with the capacity with which an operator overrides it."""
        declared, imposed = await self._run("rules")
        capacities = {text(name): integer(capacity) for name, capacity in _pairs(imposed)}
        found = {text(name): text(rule) for name, rule in _pairs(declared)}
        return {
            name: (read_rule(rule, capacities.get(name)), capacities.get(name))
            for name, rule in found.items()
        }

    async def _run(self, name: str, *values: Any) -> Any:
        return await self._database.run(LUA[name], self._root, pack(*values))


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _in_portions(names: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(names), _PORTION):
        yield names[first : first + _PORTION]


def _lex_range(rule: str) -> tuple[str, str]:
    """Return the range of the gates with tokens of a rule, or of all gates."""
    return (f"[{rule}{TOKEN_SEPARATOR}", f"({rule}{_AFTER_TOKEN}") if rule else ("-", "+")


def _gate(key: str, rule: Rule, imposed: int | None, held: int, waiting: int) -> Gate:
    return Gate(
        key=key,
        kind=rule.kind,
        capacity=rule.capacity if rule.kind == "limit" else None,
        rates=rule.rates,
        burst=rule.burst,
        imposed=imposed is not None and rule.kind == "limit",
        held=held,
        waiting=waiting,
    )


def _member(row: Sequence[Any]) -> PoolMember:
    pool, name, data, condition, job, fence, failures = row
    return PoolMember(
        pool=text(pool),
        name=text(name),
        data=read_data(data),
        condition=_CONDITIONS.get(text(condition), "drained"),
        job=optional_text(job),
        fence=integer(fence),
        failures=integer(failures),
    )


_CONDITIONS: dict[str, Condition] = {one: one for one in get_args(Condition)}
"""A member in any other condition is leaving and is shown as drained, because no job can get it."""
