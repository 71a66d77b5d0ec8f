"""Rules of gates and members of pools on Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import msgspec

from umbel.backends.gates import Condition, Gate, PoolMember
from umbel.backends.redis.database import Database
from umbel.backends.redis.record_rows import read_data
from umbel.backends.redis.scripts import octets, pack, root_of, scripts
from umbel.backends.redis.values import maybe, text, whole
from umbel.clock import Clock
from umbel.messages import TOKEN, Rule, rule_of
from umbel.messages.columns import read_rule

LUA = scripts("gates.lua", "members.lua")

_PORTION = 1000
_AFTER_TOKEN = chr(ord(TOKEN) + 1)
_json = msgspec.json.Encoder().encode


class RedisGates:
    """See ``stores.gates.Gates`` for what each method promises."""

    def __init__(self, database: Database, *, namespace: str, clock: Clock) -> None:
        self._database = database
        self._root = root_of(namespace)

    async def declare(self, rules: Sequence[Rule], lifted: Sequence[str] = ()) -> None:
        every = [*rules, *(Rule(name=name, kind="open") for name in lifted)]
        said = [
            part for rule in every for part in (rule.name, octets(_json(rule)), rule.kind == "open")
        ]
        await self._run("declare", *said)

    async def impose(self, rule: str, capacity: int | None) -> bool:
        return bool(await self._run("impose", rule, capacity))

    async def gates(self, rule: str = "", limit: int = 1000) -> list[Gate]:
        known = await self._rules()
        names = sorted(name for name in known if rule in ("", name))[:limit]
        found: dict[str, Gate] = {}
        first, last = _between(rule)
        for some in _portions(names):
            for key, held, waiting in await self._run("gates", some, first, last, 0):
                found[text(key)] = _gate(text(key), *known[text(key)], held, waiting)
        while len(found) < limit + len(names):  # in portions: there may be one for each user
            rows = await self._run("gates", [], first, last, _PORTION)
            for key, held, waiting in rows:
                name = rule_of(text(key))
                if name in known:
                    found[text(key)] = _gate(text(key), *known[name], held, waiting)
            if len(rows) < _PORTION:
                break
            first = f"({text(rows[-1][0])}"
        return [found[key] for key in sorted(found)[:limit]]

    async def enrol(
        self, pool: str, members: Mapping[str, Mapping[str, Any]], *, only: bool = False
    ) -> None:
        each = [part for name, data in members.items() for part in (name, octets(_json(data)))]
        await self._run("enrol", pool, only, *each)

    async def dismiss(self, pool: str, names: Sequence[str]) -> list[str]:
        return [text(name) for name in await self._run("dismiss", pool, *names)]

    async def turn(self, pool: str, names: Sequence[str], condition: Condition) -> list[str]:
        return [text(name) for name in await self._run("turn", pool, condition, *names)]

    async def members(self, pool: str = "") -> list[PoolMember]:
        return [_member(row) for row in await self._run("members", pool)]

    async def suspect(self, pool: str, member: str, delay: float) -> None:
        await self._run("suspect", pool, member, float(delay))

    async def suspects(self, pool: str, delay: float) -> list[PoolMember]:
        return [_member(row) for row in await self._run("suspects", pool, float(delay))]

    async def close(self) -> None:
        await self._database.close()

    async def _rules(self) -> dict[str, tuple[Rule, int | None]]:
        """What holds, by name, and the capacities that operators imposed."""
        declared, imposed = await self._run("rules")
        capacities = {text(name): whole(many) for name, many in _pairs(imposed)}
        found = {text(name): text(rule) for name, rule in _pairs(declared)}
        return {
            name: (read_rule(rule, capacities.get(name)), capacities.get(name))
            for name, rule in found.items()
        }

    async def _run(self, name: str, *values: Any) -> Any:
        return await self._database.run(LUA[name], self._root, pack(*values))


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _portions(names: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(names), _PORTION):
        yield names[first : first + _PORTION]


def _between(rule: str) -> tuple[str, str]:
    """The ends of the range in which the gates of a rule are that have tokens, or all gates."""
    return (f"[{rule}{TOKEN}", f"({rule}{_AFTER_TOKEN}") if rule else ("-", "+")


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


def _member(row: Sequence[Any]) -> PoolMember:
    pool, name, data, condition, job, fence, failures = row
    return PoolMember(
        pool=text(pool),
        name=text(name),
        data=read_data(data),
        condition=_CONDITIONS.get(text(condition), "drained"),
        job=maybe(job),
        fence=whole(fence),
        failures=whole(failures),
    )


_CONDITIONS: dict[str, Condition] = {one: one for one in get_args(Condition)}
"""Who is on the way out is called drained: it is not handed out."""
