"""Gates, which a job has to pass before it runs, and the slots that it then holds."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

TOKEN_SEPARATOR = "#"
"""Separates a rule's name and a token in the name of a gate."""

POOL_PREFIX = "pool:"
"""Begins the name of a pool's gate."""

WORKER_RULE_PREFIX = "worker-"
"""Begins the name of a rule that each worker applies by itself, as in ``worker-limit:tasks.mail``.
It is stored for display only: no job has such a gate."""

ROUTE_PREFIX = "route:"
"""Begins the name of a route's gate."""

AFFINITY_KEY = "affinitykey"
"""The extension attribute with the key of a job's route. The worker that first gets a message with
it adds the gate of the route."""

ONLY_IF_ROUTED = "onlyifrouted"
"""The header of a job that ends without starting if its key has no live route."""

INBOX_PREFIX = "worker-"
"""Begins the name of a worker's inbox; the worker's index follows."""

GateKind = Literal["limit", "rate", "pool", "open"]
"""``open``: the rule was lifted, and every job passes."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many jobs may pass the gates of one name: at once, per time, or one per pool member.

    A rule without tokens has one gate of the same name. A rule with tokens has one gate for each
    token, called ``name#token``.
    """

    name: str
    kind: GateKind = "limit"
    capacity: int = 0
    """For a limit: how many jobs may run at once. With 0, no job passes."""
    rates: tuple[tuple[int, float], ...] = ()
    """For a rate: pairs of a number of jobs and a time in seconds. All of them apply."""
    burst: int = 1
    """For a rate: how many jobs may start at the same time."""
    rejects: bool = False
    """For a limit of 0: whether jobs end there instead of waiting."""


class Slot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A slot that one job holds in a gate, and its member if the gate is a pool."""

    gate: str
    member: str = ""
    fence: int = 0
    """The fencing number of the member; it grows each time that the member is assigned."""
    data: dict[str, Any] = {}
    rejected: bool = False
    """Whether the gate lets the job pass only to reject it."""
    route: int = 0
    """The route that moved the job to a worker's inbox."""
    home: str = ""
    """The queue from which the route moved it."""


def route_gate(key: str) -> str:
    """Return the gate of the route with this key."""
    return f"{ROUTE_PREFIX}{TOKEN_SEPARATOR}{key}"


def route_key(gate: str) -> str:
    """Return the key of a route from its gate."""
    return gate.removeprefix(f"{ROUTE_PREFIX}{TOKEN_SEPARATOR}")


def inbox(index: int) -> str:
    """Return the name of the inbox of the worker with this index."""
    return f"{INBOX_PREFIX}{index}"


def is_inbox(queue: str) -> bool:
    """Return whether a queue is a worker's inbox."""
    return queue.startswith(INBOX_PREFIX) and queue.removeprefix(INBOX_PREFIX).isdecimal()


def rule_of(gate: str) -> str:
    """Return the name of a gate's rule."""
    return gate.partition(TOKEN_SEPARATOR)[0]
