"""The role that keeps gates: their rules, who holds what, and the members of pools.

Who may pass next is the broker's to say, in the step that hands the job out; here is what it goes
by, and what people see and change of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from umbel.messages import GateKind, Rule

Condition = Literal["ready", "drained", "quarantined"]
"""Of a member: whether it is handed out. Who holds a drained one keeps it to the end."""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """A gate as people see it."""

    key: str
    kind: GateKind
    capacity: int | None = None
    """How many may hold it at once; None when that is not what it counts."""
    rates: tuple[tuple[int, float], ...] = ()
    imposed: bool = False
    """Whether the capacity is an operator's and not the code's."""
    held: int = 0
    waiting: int = 0


class PoolMember(msgspec.Struct, frozen=True, kw_only=True):
    """Something outside that one job at a time may use."""

    pool: str
    name: str
    data: dict[str, Any] = {}
    condition: Condition = "ready"
    job: str | None = None
    """Who holds it."""
    fence: int = 0
    failures: int = 0
    """Health checks that failed one after the other."""


class Gates(Protocol):
    """Rules and members survive restarts of everything. All changes are safe to repeat."""

    async def declare(self, rules: Sequence[Rule], lifted: Sequence[str] = ()) -> None:
        """Say what holds from now on, and which rules hold no more: their lines pass freely.

        An operator's capacity stays above the code's. Until a rule was declared, nobody passes.
        """

    async def impose(self, rule: str, capacity: int | None) -> bool:
        """An operator's capacity for a limit, above the code's; None gives that its say again.

        What holds a slot already keeps it. False when there is no such limit.
        """

    async def gates(self, rule: str = "", limit: int = 1000) -> list[Gate]:
        """The gates of a rule, or all that somebody holds or waits for, and all without tokens."""

    async def enrol(
        self, pool: str, members: Mapping[str, Mapping[str, Any]], *, only: bool = False
    ) -> None:
        """Members that are there from now on; one that is known gets its new data.

        ``only``: these are all that the code names. Of those it named before, others leave; what
        an operator has added or removed stays as the operator said.
        """

    async def dismiss(self, pool: str, names: Sequence[str]) -> list[str]:
        """Members that are gone; what is held is kept to the end. Gives those that were there."""

    async def turn(self, pool: str, names: Sequence[str], condition: Condition) -> list[str]:
        """Drain members, or make them ready again. Gives those that were there."""

    async def members(self, pool: str = "") -> list[PoolMember]:
        """The members of a pool, or of all, by name."""

    async def suspect(self, pool: str, member: str, delay: float) -> None:
        """A member did not pass its check: it is not handed out before it has passed another.

        That is due after ``delay`` seconds. One that is drained stays so.
        """

    async def suspects(self, pool: str, delay: float) -> list[PoolMember]:
        """Quarantined members whose check is due. It is the caller's to make it: nobody else is
        told of them before ``delay`` seconds have passed."""

    async def close(self) -> None:
        """Free connections. Closing twice is fine."""
