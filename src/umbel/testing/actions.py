"""Actions of tests on adapters: publish, claim, settle, and others, each in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from umbel.backends import Demand, JobFilter, Published, WorkerEntry
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
from umbel.testing.backend import Adapters

FAR = 86_400.0
"""Seconds. No test takes that long, so a delay of this length never ends."""
SOON = 0.2
LONG_WAIT = 3600.0
"""Timeout of a waiting call: far beyond a test's deadline, so the call must be woken."""
QUEUES = ("default",)
FULL_DEMAND = Demand.of(io=100, cpu=100)
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


def envelope(backend: Adapters, **changes: Any) -> Envelope:
    """Return a command that can be published."""
    made = Envelope(
        id=fresh_id(),
        subject="tests.add",
        body=Body(JSON, b'{"args":[1,2],"kwargs":{}}'),
        namespace=backend.namespace,
        kind="io",
        created=backend.clock.now(),
    )
    return msgspec.structs.replace(made, **changes)


async def publish(backend: Adapters, **changes: Any) -> Envelope:
    """Publish one command and return it."""
    made = envelope(backend, **changes)
    await backend.broker.publish([made])
    return made


async def publish_many(backend: Adapters, count: int, **changes: Any) -> list[Envelope]:
    """Publish several commands in one batch and return them."""
    made = [envelope(backend, **changes) for _ in range(count)]
    await backend.broker.publish(made)
    return made


async def register(backend: Adapters, name: str = "worker") -> str:
    """Register a worker and return its incarnation."""
    entry = worker(name)
    await backend.registry.register(entry)
    return entry.incarnation


def worker(name: str = "worker") -> WorkerEntry:
    """Return the registry entry of a worker."""
    return WorkerEntry(
        incarnation=f"{name}-{fresh_id()}",
        name=name,
        host="here",
        pid=1,
        queues=QUEUES,
        capacity={"io": 100, "cpu": 100},
        lease=10.0,
        tasks=("tests.add",),
    )


async def kill(backend: Adapters, incarnation: str) -> None:
    """Remove a worker from the registry, as the dead-worker reaper does."""
    beats = {m.entry.incarnation: m.heartbeats for m in await backend.registry.workers()}
    if not await backend.registry.remove(incarnation, beats[incarnation]):
        raise AssertionError(f"{incarnation} was not removed, although it sent no heartbeat")


async def claim(
    backend: Adapters,
    owner: str,
    demand: Demand = FULL_DEMAND,
    *,
    queues: Sequence[str] = QUEUES,
    wait: float = 0.0,
) -> list[Delivery]:
    """Fetch the available jobs."""
    return await backend.broker.fetch(queues, demand, owner, wait)


async def claim_one(backend: Adapters, owner: str, **how: Any) -> Delivery:
    """Fetch the only available job."""
    found = await claim(backend, owner, **how)
    if len(found) != 1:
        raise AssertionError(f"expected one delivery, got {len(found)}: {found}")
    return found[0]


async def publish_and_claim(
    backend: Adapters, owner: str | None = None, **changes: Any
) -> Delivery:
    """Publish a job and claim it."""
    await publish(backend, **changes)
    return await claim_one(backend, owner or await register(backend))


async def publish_and_settle(
    backend: Adapters, outcome: Outcome | None = None, **changes: Any
) -> str:
    """Publish, claim and settle a job. Return its id."""
    delivery = await publish_and_claim(backend, **changes)
    if await settle(backend, delivery, outcome or Succeeded(RESULT)):
        raise AssertionError("a settlement under a lease that is held was refused")
    return delivery.id


def settlement(delivery: Delivery, outcome: Outcome, **changes: Any) -> Settlement:
    """Return the settlement of a delivery, with the attempt that a worker records."""
    attempt = Attempt(
        delivery.attempt,
        "worker",
        delivery.claimed,
        delivery.claimed + 1,
        type(outcome).__name__.lower(),
        failure=getattr(outcome, "failure", None),
        reason=getattr(outcome, "reason", ""),
    )
    made = Settlement(lease=delivery.lease, outcome=outcome, attempt=attempt)
    return msgspec.structs.replace(made, **changes)


async def settle(
    backend: Adapters, delivery: Delivery, outcome: Outcome, **changes: Any
) -> list[Lease]:
    """Settle one delivery. Return the leases that were refused."""
    return await backend.broker.settle([settlement(delivery, outcome, **changes)])


def let_time_pass(backend: Adapters) -> None:
    """Advance the clock by an instant. A server's own clock advances by itself."""
    if backend.time_travels:
        backend.advance(0.01)


async def prune_until_gone(backend: Adapters, *jobs: str) -> int:
    """Prune until the own times of these jobs have come. Return how many jobs were pruned."""
    pruned, wanted = 0, JobFilter(limit=1_000_000)
    while {one.id for one in await backend.records.search(wanted)} & set(jobs):
        let_time_pass(backend)
        pruned += await backend.records.prune(older_than=FAR, keep=1_000_000, limit=1_000_000)
    return pruned


async def depths(backend: Adapters) -> dict[tuple[str, str], int]:
    """Return the number of live jobs by queue and state."""
    found = await backend.broker.depths()
    return {(depth.queue, depth.state.value): depth.jobs for depth in found}


def key_taken(key: str, holder: str) -> str:
    """Return the reason of a job that was cancelled because a live job has its unique key."""
    return f"the unique key {key!r} is held by job {holder}"


def ids(found: Sequence[Delivery | Envelope | Published]) -> list[str]:
    """Return the ids of the jobs, in order."""
    return [one.id for one in found]
