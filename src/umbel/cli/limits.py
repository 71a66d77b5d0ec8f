"""``umbel limits [list] | set | reset``."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

import click
import msgspec

from umbel.app import Umbel
from umbel.backends import Gate
from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.errors import Failure
from umbel.cli.output import print_json, print_line, print_table
from umbel.cli.short_names import find_rules, has_gate_per_token
from umbel.control import Pause
from umbel.errors import ConfigurationError
from umbel.messages import TOKEN_SEPARATOR, WORKER_RULE_PREFIX, rule_of
from umbel.operations import Operations
from umbel.tasks import Rate

_HEAD = ("gate", "allows", "held", "waiting", "state")
_UNITS = {1.0: "s", 60.0: "m", 3600.0: "h", 86_400.0: "d"}
_MAX_CAPACITY = 1_000_000_000
_DEFAULT_GATES = 1_000


class LimitView(msgspec.Struct, frozen=True, kw_only=True):
    """A gate as programs read it."""

    gate: str
    kind: str
    per: Literal["cluster", "worker"]
    """What is counted: the jobs of all workers together, or those of each worker."""
    capacity: int | None
    rates: tuple[tuple[int, float], ...]
    imposed: bool
    each_token: bool
    held: int
    waiting: int
    paused: bool


@group()
def limits(context: CommandContext, as_json: bool) -> None:
    """Show limits and rates; change them while jobs run."""
    _show(context, None, _DEFAULT_GATES, as_json)


@command(name="list")
@click.argument("name", required=False, metavar="[TASK|LIMIT]")
@click.option(
    "--limit", default=_DEFAULT_GATES, show_default=True, type=click.IntRange(1, 1_000_000)
)
def list_limits(context: CommandContext, name: str | None, limit: int, as_json: bool) -> None:
    """List limits and rates, and the tokens that jobs hold or wait for.

    With a name, list those of one task, of one queue (@QUEUE), or of one limit.
    """
    _show(context, name, limit, as_json)


def _show(context: CommandContext, name: str | None, limit: int, as_json: bool) -> None:
    async def work(operations: Operations) -> list[LimitView]:
        pauses = await operations.pauses()
        if name is None:
            gates = await operations.gates(limit=limit)
        else:
            rules = find_rules(name, await _rules(operations, name))
            gates = [gate for rule in rules for gate in await operations.gates(rule, limit)]
        gates = [gate for gate in gates[:limit] if _is_shown(gate)]
        return [
            _view(gate, pauses) for gate in sorted([*gates, *_idle_paused(gates, pauses)], key=_key)
        ]

    found = context.run(work)
    if as_json:
        print_json(found)
    elif found:
        print_table(_HEAD, [_row(view) for view in found], right=("held", "waiting"))
    elif name is None:
        print_line("No limits or rates yet. A worker declares those of its tasks when it starts.")
    else:
        print_line(f"There is no limit or rate of {name}.")


def _key(gate: Gate) -> str:
    return gate.key


def _is_shown(gate: Gate) -> bool:
    """Return whether to list a gate: no pools, and lifted limits only while jobs are at them."""
    return gate.kind != "pool" and (gate.kind != "open" or bool(gate.held or gate.waiting))


def _idle_paused(gates: list[Gate], pauses: tuple[Pause, ...]) -> list[Gate]:
    """Return the gates of paused tokens that no job holds or waits for."""
    shown = {gate.key: gate for gate in gates}
    return [
        msgspec.structs.replace(shown[rule_of(pause.name)], key=pause.name, held=0, waiting=0)
        for pause in pauses
        if pause.scope == "gate" and pause.name not in shown and rule_of(pause.name) in shown
    ]


def _view(gate: Gate, pauses: tuple[Pause, ...]) -> LimitView:
    paused = {(pause.scope, pause.name) for pause in pauses}
    return LimitView(
        gate=gate.key,
        kind=gate.kind,
        per="worker" if gate.key.startswith(WORKER_RULE_PREFIX) else "cluster",
        capacity=gate.capacity,
        rates=gate.rates,
        imposed=gate.imposed,
        each_token=has_gate_per_token(gate),
        held=gate.held,
        waiting=gate.waiting,
        paused=("all", "") in paused or ("gate", gate.key) in paused,
    )


def _row(view: LimitView) -> tuple[object, ...]:
    # Each worker counts for itself, and the store does not know how many jobs it has counted.
    counts = (view.held, view.waiting) if view.per == "cluster" else ()
    held, waiting = (f"{jobs:,}" for jobs in counts) if counts else ("", "")
    return (
        view.gate,
        _allows(view),
        held,
        waiting,
        "paused" if view.paused else "",
    )


def _allows(view: LimitView) -> str:
    words = [f"{view.capacity:,} at once"] if view.capacity is not None else []
    words += [_rate(count, period) for count, period in view.rates]
    words += ["no limit: it was lifted"] if view.kind == "open" else []
    words += ["each token"] if view.each_token else []
    words += ["each worker"] if view.per == "worker" else []
    words += ["set by an operator"] if view.imposed else []
    return ", ".join(words)


def _rate(count: int, period: float) -> str:
    """Return a rate as it is declared, such as ``200/m``."""
    return f"{count}/{_UNITS.get(period, f'{period:g}s')}"


# --- change ----------------------------------------------------------------------------------


@command(name="set", context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="TASK|LIMIT|RATE")
@click.argument("value", metavar="N|RATE")
def set_limit(context: CommandContext, name: str, value: str, as_json: bool) -> None:
    """Use another limit or rate than the code, until umbel limits reset.

    N is how many jobs may run at once. Running jobs continue. With 0, no job starts. A limit with
    tokens is set for each of them.

    RATE is how many jobs may start in which time: 10/s, 200/m, 500/h, 1/30s. It replaces all rates
    of that name; several are separated by commas.

    \b
    umbel -A tasks limits set tasks.mail 3
    umbel -A tasks limits set limit:tasks.mail/tenant 1
    umbel -A tasks limits set tasks.ask 100/m
    """
    if "/" in value:
        _change_rate(context, name, _read_rates(value), as_json)
        return
    if not re.fullmatch(r"[0-9]{1,10}", value) or int(value) > _MAX_CAPACITY:
        raise click.UsageError(
            f"N: {value[:80]!r}: give a whole number from 0 to {_MAX_CAPACITY:,}, without commas,"
            " or a rate, as 10/s or 200/m."
        )
    _change_limit(context, name, int(value), as_json)


@command()
@click.argument("name", metavar="TASK|LIMIT|RATE")
def reset(context: CommandContext, name: str, as_json: bool) -> None:
    """Return to the limit or rate that the code declares."""

    async def work(operations: Operations) -> str:
        return await _find_rule(context.app_or_bare, operations, name, "limit", "rate")

    if context.run(work).startswith("rate:"):
        _change_rate(context, name, None, as_json)
    else:
        _change_limit(context, name, None, as_json)


def _read_rates(value: str) -> tuple[tuple[int, float], ...]:
    try:
        rates = [Rate(part.strip()) for part in value.split(",")]
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    return tuple((rate.count, rate.period) for rate in rates)


def _change_limit(context: CommandContext, name: str, capacity: int | None, as_json: bool) -> None:
    async def work(operations: Operations) -> tuple[str, Gate | None]:
        rule = await _find_rule(context.app_or_bare, operations, name, "limit")
        if not await operations.override_capacity(rule, capacity):
            raise Failure(f"{rule} no longer exists: no worker declares it")
        return rule, await _gate(operations, rule)

    rule, gate = context.run(work)
    allowed = gate.capacity if gate is not None else capacity
    if as_json:
        print_json({"limit": rule, "capacity": allowed, "imposed": capacity is not None})
    else:
        text = f"{allowed:,} at once" if allowed is not None else "no limit"
        _print_change(rule, text, gate, is_imposed=capacity is not None)


def _change_rate(
    context: CommandContext,
    name: str,
    rates: tuple[tuple[int, float], ...] | None,
    as_json: bool,
) -> None:
    async def work(operations: Operations) -> tuple[str, Gate | None]:
        rule = await _find_rule(context.app_or_bare, operations, name, "rate")
        if not await operations.override_rates(rule, rates):
            raise Failure(f"{rule} no longer exists: no worker declares it")
        return rule, await _gate(operations, rule)

    rule, gate = context.run(work)
    allowed = gate.rates if gate is not None else rates or ()
    if as_json:
        print_json({"rate": rule, "rates": allowed, "imposed": rates is not None})
    else:
        text = ", ".join(_rate(count, period) for count, period in allowed)
        _print_change(rule, text, gate, is_imposed=rates is not None)


def _print_change(rule: str, allows: str, gate: Gate | None, *, is_imposed: bool) -> None:
    each = " for each token" if gate is not None and has_gate_per_token(gate) else ""
    origin = "set by an operator" if is_imposed else "as declared in the code"
    print_line(f"{rule}: {allows}{each}, {origin}")


async def _gate(operations: Operations, rule: str) -> Gate | None:
    """Return the gate that shows what a rule allows; None if the rule was lifted meanwhile."""
    found = [gate for gate in await operations.gates(rule) if gate.kind != "open"]
    return found[0] if found else None


async def _find_rule(
    app: Umbel, operations: Operations, name: str, *kinds: Literal["limit", "rate"]
) -> str:
    """Return the limit or rate with this name. Raises UsageError or Failure unless there is one."""
    if TOKEN_SEPARATOR in name:
        raise click.UsageError(
            f"{name}: all tokens have the same limit. Set {rule_of(name)}, or pause this token:"
            f" umbel pause --gate {name}"
        )
    rules = await _rules(operations, name)
    shared = {rule: kind for rule, kind in rules.items() if not rule.startswith(WORKER_RULE_PREFIX)}
    wanted = [rule for rule, kind in shared.items() if kind in kinds]
    found = find_rules(name, wanted)
    if len(found) == 1:
        return found[0]
    if found:
        raise click.UsageError(f"{name!r} matches {' and '.join(found)}: give the full name.")
    if other := find_rules(name, [rule for rule, kind in shared.items() if kind == "rate"]):
        raise click.UsageError(
            f"{name!r} is {other[0]}, a rate: give how many in which time, as 10/s or 200/m. To"
            f" stop it: umbel pause --gate {other[0]}"
        )
    if other := find_rules(name, [rule for rule, kind in shared.items() if kind == "limit"]):
        raise click.UsageError(f"{name!r} is {other[0]}, a limit: give a whole number.")
    if other := find_rules(name, rules.keys() - shared.keys()):
        raise click.UsageError(
            f"{name!r} is {other[0]}, which each worker applies by itself: change it in the code,"
            " and restart the workers."
        )
    if declared := find_rules(name, _declared(app)):
        raise Failure(
            f"{declared[0]} is not in the store yet: a worker declares it when it starts."
            " Start a worker, then set the limit"
        )
    options = " or ".join(f"{kind}=" for kind in kinds)
    known = f"known {' and '.join(f'{kind}s' for kind in kinds)}: {', '.join(wanted[:10])}"
    hint = known if wanted else f"no task declares {options}"
    raise Failure(f"there is no {' or '.join(kinds)} {name!r}; {hint}")


async def _rules(operations: Operations, name: str) -> dict[str, str]:
    """Return the rules in the store, with their kinds."""
    # A rule after the first thousand gates is found by its full name only.
    gates = [*await operations.gates(), *await operations.gates(rule_of(name))]
    return {rule_of(gate.key): gate.kind for gate in gates}


def _declared(app: Umbel) -> Collection[str]:
    every = [*(task.gate_set for task in app.registry), *app.registry.queue_gates.values()]
    return sorted({name for one in every for name in (*one.limits, *one.rates)})


for _command in (list_limits, set_limit, reset):
    limits.add_command(_command)
