"""What the pages of limits, rates, pools and routes show."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from umbel.backends import Gate, JobFilter
from umbel.dashboard.pause_documents import pauses_of
from umbel.dashboard.views import Page, View
from umbel.messages import WORKER_RULE_PREFIX, State, rule_of
from umbel.operations import JobSearch, Operations, PoolView

_MAX_GATES = 200
_GATE_JOBS = 2_000
_MAX_TOKENS = 10_000
_CHANGES = {"limit": "set-limit", "rate": "set-rate"}
"""The action that changes a rule of each kind."""


async def read_gates(view: View) -> dict[str, Any]:
    """Return limits, rates and pools: what is held, and how many jobs wait."""
    gates = await view.operations.gates(limit=_MAX_GATES)
    pools = await view.operations.pools()
    found = [_gate_document(gate) for gate in gates if gate.kind != "pool"]
    return {
        "gates": sorted(found, key=lambda gate: (-gate["waiting"], gate["key"])),
        "pools": [_pool(pool) for pool in pools],
        "is_more": len(gates) >= _MAX_GATES,
    }


def _pool(pool: PoolView) -> dict[str, Any]:
    """Return a pool. The data of its members may be secret, and no page needs them."""
    names = ("name", "condition", "job", "failures")
    members = [{name: getattr(one, name) for name in names} for one in pool.members]
    document: dict[str, Any] = msgspec.to_builtins(pool)
    return document | {"members": members}


async def read_gate(view: View) -> dict[str, Any]:
    """Return one gate: the jobs that hold its slots, and the first ones that wait."""
    key = view.path["key"]
    states = (State.RUNNING, State.WAITING)
    wanted = JobFilter(states=states, limit=_GATE_JOBS)
    found = await view.operations.search(JobSearch(wanted=wanted, with_values=False))
    holders: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for job in found.jobs:
        entry = {"id": job.id, "task": job.task, "state": job.state.value}
        if any(slot.gate == key for slot in job.slots):
            holders.append(entry | {"since": job.started, "worker": job.worker})
        elif job.gate == key:
            waiting.append(entry | {"since": job.waiting_since})
    waiting.sort(key=lambda one: one["since"] or 0.0)
    gate = await _gate(view.operations, key)
    return {
        "key": key,
        "pauses": await pauses_of(view.operations, "gate", key),
        "gate": None if gate is None else _gate_document(gate),
        # The store lists the newest jobs first, so the job that waits longest may be beyond them.
        "is_cut": found.after is not None,
        "holders": holders[:50],
        "waiting": waiting[:50],
    }


async def _gate(operations: Operations, key: str) -> Gate | None:
    """Return a gate; of a token that no job uses, with the numbers of its rule."""
    rule = rule_of(key)
    gates = {gate.key: gate for gate in await operations.gates(rule, limit=_MAX_TOKENS)}
    if key in gates or rule not in gates:
        return gates.get(key)
    return replace(gates[rule], key=key, held=0, waiting=0)


def _gate_document(gate: Gate) -> dict[str, Any]:
    """Return what is shown of a gate, and how operators can change its rule."""
    rule = rule_of(gate.key)
    is_of_worker = rule.startswith(WORKER_RULE_PREFIX)
    return {
        **msgspec.to_builtins(gate),
        "rule": rule,
        "is_of_worker": is_of_worker,
        "change": None if is_of_worker else _CHANGES.get(gate.kind),
    }


async def read_routes(view: View) -> dict[str, Any]:
    """Return the live routes, newest first, or those of one key."""
    key = view.query.get("key") or None
    routes = await view.operations.routes(key=key, limit=200)
    indexes = {one.index: one.worker for one in await view.operations.worker_indexes()}
    return {
        "key": key or "",
        "routes": [
            msgspec.to_builtins(route) | {"worker": indexes.get(route.index)} for route in routes
        ],
    }


GATE_PAGES = (
    Page(name="gates", path="/gates", title="Limits and pools", read=read_gates, seconds=2),
    Page(name="gate", path="/gates/{key}", title="Gate", read=read_gate, seconds=2),
    Page(
        name="routes",
        path="/routes",
        title="Routes",
        read=read_routes,
        seconds=2,
        parameters=("key",),
    ),
)
"""The pages of gates."""
