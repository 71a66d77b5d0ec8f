"""The job of a tick: the template of its schedule with an id, a nominal time and a delay."""

from __future__ import annotations

import hashlib
from uuid import UUID, uuid5

from msgspec.structs import replace

from umbel.messages import (
    NOMINAL_TIME,
    SCHEDULE,
    Envelope,
    Rule,
    fresh_id,
    random_hex,
)
from umbel.schedules.definitions import Definition, Plan

_TICKS = UUID("5f1d6a52-9c7e-5b0e-8f43-0c1c9d2f7a11")
"""The namespace of the ids of ticks. It must never change: ids tell which ticks are published."""


def tick_id(namespace: str, schedule: str, nominal: int) -> str:
    """Return the id of a tick. It is the same for every scheduler and every attempt to publish."""
    return str(uuid5(_TICKS, f"{namespace}\n{schedule}\n{nominal}"))


def queue_rule(schedule: str) -> Rule:
    """Return the limit by which the ticks of a schedule with ``overlap="queue"`` run in turn."""
    return Rule(name=f"limit:@schedule/{schedule}", capacity=1)


def tick(
    schedule: str, definition: Definition, plan: Plan, nominal: int, *, namespace: str, now: float
) -> Envelope:
    """Return the job of one tick."""
    late = _job(schedule, definition, plan, nominal, namespace)
    due = nominal + _jitter(schedule, nominal, plan.jitter) + (definition.template.delay or 0.0)
    wait = due - now
    return replace(late, id=tick_id(namespace, schedule, nominal), delay=wait if wait > 0 else None)


def manual_tick(
    schedule: str, definition: Definition, plan: Plan, *, namespace: str, now: float
) -> Envelope:
    """Return the job of a tick that an operator requests: now, and with an id of its own."""
    return replace(_job(schedule, definition, plan, int(now), namespace), id=fresh_id())


def _job(
    schedule: str, definition: Definition, plan: Plan, nominal: int, namespace: str
) -> Envelope:
    template = definition.template
    unique, gates = template.unique, template.gates
    if plan.overlap == "skip" and unique is None:
        unique = f"schedule:{schedule}"
    if plan.overlap == "queue":
        gates = (queue_rule(schedule).name, *gates)
    return replace(
        template,
        namespace=namespace,
        unique=unique,
        gates=gates,
        traceparent=f"00-{random_hex(16)}-{random_hex(8)}-01",
        headers={**template.headers, SCHEDULE: schedule, NOMINAL_TIME: str(nominal)},
    )


def _jitter(schedule: str, nominal: int, most: int) -> int:
    if not most:
        return 0
    digest = hashlib.sha256(f"{schedule}\n{nominal}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % most
