"""Operators' limits and rates: numbers that override those in the code.

An override is the entry ``limits/<rule>``. The value for a limit is the capacity in digits; gates
read it when a job passes them. The value for a rate has the rates of the operator and those of the
code. Gates do not read it: the rule is declared with the operator's rates, by the operator's
command and by every worker that starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from umbel.backends import LIMITS, Coordination, Entry, Gate, Gates, Put, json_value
from umbel.messages import Rule, rule_of

Rates = tuple[tuple[int, float], ...]


class RateOverride(msgspec.Struct, frozen=True):
    """The value of an entry that overrides a rate."""

    rates: Rates
    declared: Rates
    """The rates in the code, to which the rule returns without the override."""


class LimitOverrides:
    """Sets and removes overrides, and declares rules with them."""

    def __init__(self, coordination: Coordination, gates: Gates) -> None:
        self._coordination = coordination
        self._gates = gates

    async def override(self, rule: str, capacity: int | None) -> bool:
        """Override the capacity of a limit in the code; None removes the override.

        Jobs that hold a slot keep it. Returns False if there is no such limit.
        """
        found = await self._gates.gates(rule, limit=1)
        if not any(gate.kind == "limit" for gate in found):
            return False
        if capacity is None:
            await self._coordination.commit({}, deletes=[LIMITS + rule])
        else:
            await self._coordination.commit({}, [Put(LIMITS + rule, b"%d" % capacity)])
        return True

    async def override_rates(self, rule: str, rates: Rates | None) -> bool:
        """Override the rates of a rule in the code; None removes the override.

        Returns False if there is no such rate.
        """
        key = LIMITS + rule
        while True:
            found = [gate for gate in await self._gates.gates(rule, limit=1) if gate.kind == "rate"]
            if not found:
                return False
            entry = (await self._entries())[0].get(key)
            known = _read(entry)
            declared = found[0].rates if known is None else known.declared
            puts = [] if rates is None else [Put(key, json_value(RateOverride(rates, declared)))]
            checks = {key: 0 if entry is None else entry.revision}
            deletes = [key] if rates is None and entry is not None else []
            if await self._coordination.commit(checks, puts, deletes) is not None:
                break
        await self.declare([Rule(name=rule, kind="rate", rates=declared, burst=found[0].burst)])
        return True

    async def declare(self, rules: Sequence[Rule], lifted: Sequence[str] = ()) -> None:
        """Declare rules as the code has them, but with the rates of operators."""
        if not any(rule.kind == "rate" for rule in rules):
            await self._gates.declare(rules, lifted)
            return
        entries, revision = await self._entries()
        while True:
            known = {rule.name: _read(entries.get(LIMITS + rule.name)) for rule in rules}
            await self._gates.declare(
                [_overridden(rule, known[rule.name]) for rule in rules], lifted
            )
            await self._update_declared(rules, known, entries)
            before = revision
            # An operator may have changed an override since it was read.
            entries, revision = await self._entries()
            if revision == before:
                return

    async def gates(self, rule: str, limit: int) -> list[Gate]:
        """Return gates as the store does, and say also of rates whether they are overridden."""
        found = await self._gates.gates(rule, limit)
        if not any(gate.kind == "rate" for gate in found):
            return found
        entries, _ = await self._entries()
        imposed = {key.removeprefix(LIMITS) for key, one in entries.items() if _read(one)}
        return [
            replace(gate, imposed=rule_of(gate.key) in imposed) if gate.kind == "rate" else gate
            for gate in found
        ]

    async def _update_declared(
        self,
        rules: Sequence[Rule],
        known: Mapping[str, RateOverride | None],
        entries: Mapping[str, Entry],
    ) -> None:
        """Record the rates in the code where they have changed below an override."""
        for rule in rules:
            override = known[rule.name]
            if override is not None and override.declared != rule.rates:
                key = LIMITS + rule.name
                value = json_value(replace(override, declared=rule.rates))
                await self._coordination.commit({key: entries[key].revision}, [Put(key, value)])

    async def _entries(self) -> tuple[dict[str, Entry], int]:
        """Return all overrides by key, and the revision before the first of them was read."""
        page = await self._coordination.read(LIMITS)
        entries, revision = [*page.entries], page.revision
        while page.more:
            page = await self._coordination.read(LIMITS, after=entries[-1].key)
            entries += page.entries
        return {entry.key: entry for entry in entries}, revision


def _overridden(rule: Rule, override: RateOverride | None) -> Rule:
    return rule if override is None or rule.kind != "rate" else replace(rule, rates=override.rates)


def _read(entry: Entry | None) -> RateOverride | None:
    """Return the override of a rate; None for that of a limit, or if it cannot be read."""
    if entry is None:
        return None
    try:
        return msgspec.json.decode(entry.value, type=RateOverride)
    except msgspec.MsgspecError:
        return None
