"""What a job has to pass before it runs, and what it holds when it has passed."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

TOKEN = "#"
"""Between a rule's name and the token that has a gate of its own under it."""

POOL = "pool:"
"""What the name of a pool's gate begins with."""

ROUTE = "route:"
"""What the name of a route's gate begins with."""

ONLY_IF_ROUTED = "onlyifrouted"
"""The header of a job that ends unstarted where its key has no live route."""

INBOX = "worker-"
"""What the name of a worker's own queue begins with; its index follows."""

GateKind = Literal["limit", "rate", "pool", "open"]
"""Open: the rule was lifted, and everybody passes."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many may pass the gates of one name: at once, in a time, or with a member each.

    A rule without tokens has one gate, of the same name; else there is one for each token, called
    ``name#token``.
    """

    name: str
    kind: GateKind = "limit"
    capacity: int = 0
    """Of a limit: how many may run at once. 0 lets nobody pass."""
    rates: tuple[tuple[int, float], ...] = ()
    """Of a rate: each says how many in so many seconds; all of them hold."""
    burst: int = 1
    """Of a rate: how many may start at the same moment."""
    rejects: bool = False
    """Of a limit of 0: whether jobs end there instead of waiting."""


class Slot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place that one job holds in a gate, and the member of a pool that comes with it."""

    gate: str
    member: str = ""
    fence: int = 0
    """Grows each time that the member is handed out."""
    data: dict[str, Any] = {}
    rejected: bool = False
    """The gate lets it pass only to end."""
    route: int = 0
    """The route by which it went to a worker's own queue."""
    home: str = ""
    """The queue that it left for that."""


def route_gate(key: str) -> str:
    """The gate before the worker that has this key."""
    return f"{ROUTE}{TOKEN}{key}"


def route_key(gate: str) -> str:
    """The key of a route, from its gate."""
    return gate.removeprefix(f"{ROUTE}{TOKEN}")


def inbox(index: int) -> str:
    """The queue that only the worker with this index serves."""
    return f"{INBOX}{index}"


def is_inbox(queue: str) -> bool:
    """Whether a queue is one worker's own."""
    return queue.startswith(INBOX) and queue.removeprefix(INBOX).isdecimal()


def rule_of(gate: str) -> str:
    """The name of the rule that a gate stands under."""
    return gate.partition(TOKEN)[0]
