"""What users can do with limits, rates and pools."""

from __future__ import annotations

from umbel.dashboard.action_requests import Action, ActionRequest, check_typed
from umbel.dashboard.rendering import plural
from umbel.errors import NotAllowed
from umbel.messages import WORKER_RULE_PREFIX, rule_of
from umbel.tasks import Rate


async def _set_limit(request: ActionRequest) -> str:
    rule, each = _rule(request)
    text = request.fields.get("capacity", "").strip()
    capacity = None if not text else request.number("capacity", 0, 1_000_000)
    if not await request.operations.override_capacity(rule, capacity):
        raise NotAllowed(f"There is no limit {rule}.")
    if capacity is None:
        return f"{rule} has its declared capacity again{each}."
    admits = f"{rule} now admits {plural(capacity, 'job', 'jobs')}{each}."
    return admits + (" No job passes it." * (capacity == 0))


async def _set_rate(request: ActionRequest) -> str:
    rule, each = _rule(request)
    parts = request.fields.get("rates", "").strip()
    rates = [Rate(part.strip()) for part in parts.split(",")] if parts else []
    numbers = [(rate.count, rate.period) for rate in rates]
    if not await request.operations.override_rates(rule, numbers or None):
        raise NotAllowed(f"There is no rate {rule}.")
    if not rates:
        return f"{rule} has its declared rates again{each}."
    return f"{rule} now lets jobs start at {parts}{each}."


def _rule(request: ActionRequest) -> tuple[str, str]:
    """Return the rule of a gate, and words if it applies to more than this gate.

    Raises:
        NotAllowed: each worker applies it by itself.
    """
    key = request.get("rule")
    rule = rule_of(key)
    if rule.startswith(WORKER_RULE_PREFIX):
        raise NotAllowed(
            f"Each worker applies {rule} by itself: change it in the code, and restart the workers."
        )
    return rule, " for each token" if key != rule else ""


async def _drain(request: ActionRequest) -> str:
    if not await request.operations.drain(request.get("pool"), [request.get("member")]):
        raise NotAllowed("There is no such member.")
    return "The member gets no new jobs."


async def _ready(request: ActionRequest) -> str:
    if not await request.operations.ready(request.get("pool"), [request.get("member")]):
        raise NotAllowed("There is no such member.")
    return "The member gets jobs again."


async def _remove_member(request: ActionRequest) -> str:
    check_typed(request, request.get("member"))
    if not await request.operations.remove_members(request.get("pool"), [request.get("member")]):
        raise NotAllowed("There is no such member.")
    return "The member was removed. A job that holds it keeps it until it ends."


GATE_ACTIONS = (
    Action(
        name="set-limit",
        summary="Override the capacity of a limit; an empty capacity removes the override.",
        act=_set_limit,
        fields=("rule",),
        optional=("capacity",),
        subject=("rule",),
    ),
    Action(
        name="set-rate",
        summary="Override the rates of a rule, as in 10/s, 200/m; empty removes the override.",
        act=_set_rate,
        fields=("rule",),
        optional=("rates",),
        subject=("rule",),
    ),
    Action(
        name="drain",
        summary="Give a member of a pool to no new jobs.",
        act=_drain,
        fields=("pool", "member"),
        subject=("pool", "member"),
    ),
    Action(
        name="ready",
        summary="Use a drained or quarantined member of a pool again.",
        act=_ready,
        fields=("pool", "member"),
        subject=("pool", "member"),
    ),
    Action(
        name="remove-member",
        summary="Remove a member of a pool; a job that holds it keeps it.",
        act=_remove_member,
        fields=("pool", "member", "confirm"),
        subject=("pool", "member"),
    ),
)
"""The actions on limits, rates and pools."""
