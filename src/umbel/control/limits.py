"""Operators' limits: capacities that override those in the code.

An override is the entry ``limits/<rule>``; its value is the capacity in digits. Gates read it when
a job passes them.
"""

from __future__ import annotations

from umbel.backends import LIMITS, Coordination, Gates, Put


class LimitOverrides:
    """Sets and removes overrides."""

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
