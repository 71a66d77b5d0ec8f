"""``umbel limits [list] | set | reset``."""

from __future__ import annotations

import re
from collections.abc import Collection

import click
import msgspec

from umbel.app import Umbel
from umbel.backends import Gate
from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.errors import Failure
from umbel.cli.output import print_json, print_line, print_table
from umbel.cli.short_names import find_rules, has_gate_per_token
from umbel.control import Pause
from umbel.messages import TOKEN_SEPARATOR, rule_of
from umbel.operations import Operations

_HEAD = ("gate", "allows", "held", "waiting", "state")
_UNITS = {1.0: "s", 60.0: "m", 3600.0: "h", 86_400.0: "d"}
_MAX_CAPACITY = 1_000_000_000
_DEFAULT_GATES = 1_000


class LimitView(msgspec.Struct, frozen=True, kw_only=True):
    """A gate as programs read it."""

    gate: str
    kind: str
    capacity: int | None
    rates: tuple[tuple[int, float], ...]
    imposed: bool
    each_token: bool
    held: int
    waiting: int
    paused: bool


@group()
def limits(context: CommandContext, as_json: bool) -> None:
    """Show limits and rates; set a limit."""
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
        print_line(
            "There are no limits or rates. A worker declares those of its tasks when it starts."
        )
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
        capacity=gate.capacity,
        rates=gate.rates,
        imposed=gate.imposed,
        each_token=has_gate_per_token(gate),
        held=gate.held,
        waiting=gate.waiting,
        paused=("all", "") in paused or ("gate", gate.key) in paused,
    )


def _row(view: LimitView) -> tuple[object, ...]:
    return (
        view.gate,
        _allows(view),
        f"{view.held:,}",
        f"{view.waiting:,}",
        "paused" if view.paused else "",
    )


def _allows(view: LimitView) -> str:
    words = [f"{view.capacity:,} at once"] if view.capacity is not None else []
    words += [_rate(count, period) for count, period in view.rates]
    words += ["no limit: it was lifted"] if view.kind == "open" else []
    words += ["each token"] if view.each_token else []
    words += ["imposed"] if view.imposed else []
    return ", ".join(words)


def _rate(count: int, period: float) -> str:
    """Return a rate as it is declared, such as ``200/m``."""
    return f"{count}/{_UNITS.get(period, f'{period:g}s')}"


# --- change ----------------------------------------------------------------------------------


@command(name="set", context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="TASK|LIMIT")
@click.argument("number", metavar="N")
def set_limit(context: CommandContext, name: str, number: str, as_json: bool) -> None:
    """Let N jobs run at once instead of the number in the code, until umbel limits reset.

    Running jobs continue. With 0, no job starts. A limit with tokens is set for each of them.

    \b
    umbel -A tasks limits set tasks.mail 3
    umbel -A tasks limits set limit:tasks.mail/tenant 1
    """
    if not re.fullmatch(r"[0-9]{1,10}", number) or int(number) > _MAX_CAPACITY:
        raise click.UsageError(
            f"N: {number[:80]!r}: give a whole number from 0 to {_MAX_CAPACITY:,}, without commas."
        )
    _change(context, name, int(number), as_json)


@command()
@click.argument("name", metavar="TASK|LIMIT")
def reset(context: CommandContext, name: str, as_json: bool) -> None:
    """Return to the limit that the code declares."""
    _change(context, name, None, as_json)


def _change(context: CommandContext, name: str, capacity: int | None, as_json: bool) -> None:
    app = context.app_or_bare

    async def work(operations: Operations) -> tuple[str, Gate | None]:
        rule = await _find_limit(app, operations, name)
        if not await operations.override_capacity(rule, capacity):
            raise Failure(f"{rule} no longer exists: no worker declares it")
        found = [gate for gate in await operations.gates(rule) if gate.kind == "limit"]
        return rule, found[0] if found else None

    rule, gate = context.run(work)
    allowed = gate.capacity if gate is not None else capacity
    if as_json:
        print_json({"limit": rule, "capacity": allowed, "imposed": capacity is not None})
    else:
        each = " for each token" if gate is not None and has_gate_per_token(gate) else ""
        origin = "as declared in the code" if capacity is None else "imposed"
        print_line(f"{rule}: {allowed:,} at once{each}, {origin}" if allowed is not None else rule)


async def _find_limit(app: Umbel, operations: Operations, name: str) -> str:
    """Return the limit with this name. Raises UsageError or Failure unless there is exactly one."""
    if TOKEN_SEPARATOR in name:
        raise click.UsageError(
            f"{name}: all tokens have the same limit. Set {rule_of(name)}, or pause this token:"
            f" umbel pause --gate {name}"
        )
    rules = await _rules(operations, name)
    limits = [rule for rule, kind in rules.items() if kind == "limit"]
    found = find_rules(name, limits)
    if len(found) == 1:
        return found[0]
    if found:
        raise click.UsageError(f"{name!r} matches {' and '.join(found)}: give the full name.")
    if other := find_rules(name, [rule for rule, kind in rules.items() if kind == "rate"]):
        raise click.UsageError(
            f"{name!r} is {other[0]}, a rate; only limits can be set. Change the rate in the code,"
            f" or pause it: umbel pause --gate {other[0]}"
        )
    if declared := find_rules(name, _declared(app)):
        raise Failure(
            f"{declared[0]} is not in the store yet: a worker declares it when it starts."
            " Start a worker, then set the limit"
        )
    known = f"known limits: {', '.join(limits[:10])}" if limits else "no task declares limit="
    raise Failure(f"there is no limit {name!r}; {known}")


async def _rules(operations: Operations, name: str) -> dict[str, str]:
    """Return the rules in the store, with their kinds."""
    # A rule after the first thousand gates is found by its full name only.
    gates = [*await operations.gates(), *await operations.gates(rule_of(name))]
    return {rule_of(gate.key): gate.kind for gate in gates}


def _declared(app: Umbel) -> Collection[str]:
    every = [*(task.gate_set for task in app.registry), *app.registry.queue_gates.values()]
    return sorted({name for gate_set in every for name in gate_set.limits})


for _command in (list_limits, set_limit, reset):
    limits.add_command(_command)
