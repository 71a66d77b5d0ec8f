"""The role that stores gates: their rules, their holders, and the members of pools.

The broker decides which job passes next, in the step that claims the job. This role has the rules
for that, and what operators see and change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from umbel.messages import GateKind, Rule

Condition = Literal["ready", "drained", "quarantined"]
"""Whether jobs get a member: only if it is ready. A job that holds a drained member keeps it."""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """A gate, for display."""

    key: str
    kind: GateKind
    capacity: int | None = None
    """How many jobs may hold it at once; None for a rate."""
    rates: tuple[tuple[int, float], ...] = ()
    burst: int = 1
    imposed: bool = False
    """Whether an operator has overridden the capacity in the code. Stores do not say it of rates:
    see ``control.limits``."""
    held: int = 0
    waiting: int = 0


class PoolMember(msgspec.Struct, frozen=True, kw_only=True):
    """An external resource that one job at a time may use."""

    pool: str
    name: str
    data: dict[str, Any] = {}
    condition: Condition = "ready"
    job: str | None = None
    """The job that holds it."""
    fence: int = 0
    failures: int = 0
    """The number of checks that failed in a row."""


class Gates(Protocol):
    """Rules and members are durable. All changes are safe to repeat."""

    async def declare(self, rules: Sequence[Rule], lifted: Sequence[str] = ()) -> None:
        """Set rules, and remove the rules ``lifted``: jobs that wait there pass freely.

        An entry ``LIMITS`` of an operator overrides the capacity in the code. No job passes a
        gate before its rule was declared. A rate that is changed starts anew: the next job may
        start at once, even if it had to wait by the former rate.
        """

    async def gates(self, rule: str = "", limit: int = 1000) -> list[Gate]:
        """Return the gates of a rule; without one, all gates that are in use or have no tokens."""

    async def add_members(
        self, pool: str, members: Mapping[str, Mapping[str, Any]], *, only: bool = False
    ) -> None:
        """Add members to a pool. An existing member gets the new data.

        With ``only``, these are all members that the code names: others that it named before are
        removed. Members that an operator has added or removed are not changed.
        """

    async def remove_members(self, pool: str, names: Sequence[str]) -> list[str]:
        """Remove members; return those that existed. A job that holds a member keeps it."""

    async def set_condition(
        self, pool: str, names: Sequence[str], condition: Condition
    ) -> list[str]:
        """Drain members, or make them ready again; return those that existed."""

    async def members(self, pool: str = "") -> list[PoolMember]:
        """Return the members of a pool, or of all pools, by name."""

    async def quarantine(self, pool: str, member: str, delay: float) -> None:
        """Quarantine a member that failed its check: no job gets it until a check has passed.

        The next check is due after ``delay`` seconds. A drained member stays drained.
        """

    async def claim_due_checks(self, pool: str, delay: float) -> list[PoolMember]:
        """Return quarantined members whose check is due, for the caller to check.

        They are not returned to other callers before ``delay`` seconds have passed.
        """

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""
