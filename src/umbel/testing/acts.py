"""What tests do with a backend, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from umbel.backends import Demand, Published, WorkerEntry
from umbel.messages import (
    JSON,
    Attempt,
    Body,
    Cancelled,
    Delivery,
    Envelope,
    Expired,
    Failed,
    Failure,
    Interrupted,
    Lease,
    Outcome,
    Parked,
    Rejected,
    Retry,
    Settlement,
    Snoozed,
    Succeeded,
    fresh_id,
)
from umbel.testing.backend import Backend

FAR = 86_400.0
"""Seconds no test takes: what is this far in the future stays there."""
SOON = 0.2
PATIENCE = 3600.0
"""Seconds a waiting call is given: far beyond a test's deadline, so it has to be woken."""
QUEUES = ("default",)
PLENTY = Demand(io=100, cpu=100)
FAILURE = Failure("builtins:ValueError", "no such colour", "Traceback: …", '["no such colour"]')
RESULT = Body(JSON, b"[42]")

OUTCOMES: tuple[Outcome, ...] = (
    Succeeded(RESULT),
    Failed(FAILURE),
    Retry(FAILURE, 0.0),
    Retry(FAILURE, FAR, "mail"),
    Snoozed(FAR),
    Interrupted("stopping"),
    Parked(()),
    Cancelled("not wanted"),
    Rejected("unknown task"),
    Expired(),
)
"""At least one of every kind."""


def envelope(backend: Backend, **changes: Any) -> Envelope:
    """A command that could be published here."""
    made = Envelope(
        id=fresh_id(),
        subject="tests.add",
        body=Body(JSON, b'{"args":[1,2],"kwargs":{}}'),
        namespace=backend.namespace,
        kind="io",
        created=backend.clock.now(),
    )
    return msgspec.structs.replace(made, **changes)


async def publish(backend: Backend, **changes: Any) -> Envelope:
    """Publish one command and return it."""
    made = envelope(backend, **changes)
    await backend.broker.publish([made])
    return made


async def publish_many(backend: Backend, count: int, **changes: Any) -> list[Envelope]:
    """Publish several in one batch."""
    made = [envelope(backend, **changes) for _ in range(count)]
    await backend.broker.publish(made)
    return made


async def enlist(backend: Backend, name: str = "worker") -> str:
    """Begin a worker's life; its incarnation."""
    entry = worker(name)
    await backend.registry.enlist(entry)
    return entry.incarnation


def worker(name: str = "worker") -> WorkerEntry:
    """What a worker says of itself."""
    return WorkerEntry(
        incarnation=f"{name}-{fresh_id()}",
        name=name,
        host="here",
        pid=1,
        queues=QUEUES,
        io=100,
        cpu=100,
        lease=10.0,
        tasks=("tests.add",),
    )


async def kill(backend: Backend, incarnation: str) -> None:
    """End a worker's life as the watcher of its heart would."""
    beats = {m.entry.incarnation: m.beat for m in await backend.registry.members()}
    if not await backend.registry.remove(incarnation, beats[incarnation]):
        raise AssertionError(f"{incarnation} stood still and was not removed")


async def take(
    backend: Backend,
    owner: str,
    demand: Demand = PLENTY,
    *,
    queues: Sequence[str] = QUEUES,
    wait: float = 0.0,
) -> list[Delivery]:
    """Fetch what is there."""
    return await backend.broker.fetch(queues, demand, owner, wait)


async def take_one(backend: Backend, owner: str, **how: Any) -> Delivery:
    """Fetch the one delivery that has to be there."""
    found = await take(backend, owner, **how)
    if len(found) != 1:
        raise AssertionError(f"expected one delivery, got {len(found)}: {found}")
    return found[0]


async def running(backend: Backend, owner: str | None = None, **changes: Any) -> Delivery:
    """Publish a job and claim it."""
    await publish(backend, **changes)
    return await take_one(backend, owner or await enlist(backend))


async def finished(backend: Backend, outcome: Outcome | None = None, **changes: Any) -> str:
    """Publish, claim and settle a job; its id."""
    delivery = await running(backend, **changes)
    if await settle(backend, delivery, outcome or Succeeded(RESULT)):
        raise AssertionError("a settlement under a lease that is held was refused")
    return delivery.id


def settlement(delivery: Delivery, outcome: Outcome, **changes: Any) -> Settlement:
    """The end of a delivery, with the story a worker would tell of it."""
    story = Attempt(
        delivery.attempt,
        "worker",
        delivery.claimed,
        delivery.claimed + 1,
        type(outcome).__name__.lower(),
        failure=getattr(outcome, "failure", None),
        reason=getattr(outcome, "reason", ""),
    )
    made = Settlement(lease=delivery.lease, outcome=outcome, attempt=story)
    return msgspec.structs.replace(made, **changes)


async def settle(
    backend: Backend, delivery: Delivery, outcome: Outcome, **changes: Any
) -> list[Lease]:
    """Settle one delivery; what was refused."""
    return await backend.broker.settle([settlement(delivery, outcome, **changes)])


async def depths(backend: Backend) -> dict[tuple[str, str], int]:
    """Live jobs by queue and state."""
    found = await backend.broker.depths()
    return {(depth.queue, depth.state.value): depth.jobs for depth in found}


def ids(found: Sequence[Delivery | Envelope | Published]) -> list[str]:
    """The jobs' ids, in order."""
    return [one.id for one in found]
