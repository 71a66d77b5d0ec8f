"""``umbel limits [list] | set | reset``."""

from __future__ import annotations

import re
from collections.abc import Collection

import click
import msgspec

from umbel.app import Umbel
from umbel.backends import Gate, Pause
from umbel.cli.answers import answer, say, table
from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.errors import Failure
from umbel.cli.names import by_token, rules_named
from umbel.messages import TOKEN, rule_of
from umbel.operations import Operations

_HEAD = ("gate", "allows", "held", "waiting", "state")
_UNITS = {1.0: "s", 60.0: "m", 3600.0: "h", 86_400.0: "d"}
_MOST = 1_000_000_000
_SHOWN = 1_000


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
def limits(frame: CommandContext, as_json: bool) -> None:
    """Show limits and rates; set a limit."""
    _show(frame, None, _SHOWN, as_json)


@command(name="list")
@click.argument("name", required=False, metavar="[TASK|LIMIT]")
@click.option("--limit", default=_SHOWN, show_default=True, type=click.IntRange(1, 1_000_000))
def list_limits(frame: CommandContext, name: str | None, limit: int, as_json: bool) -> None:
    """Every limit and rate, and the tokens that somebody holds or waits for.

    With a name: those of one task, of one queue (@QUEUE), or of one limit.
    """
    _show(frame, name, limit, as_json)


def _show(frame: CommandContext, name: str | None, limit: int, as_json: bool) -> None:
    async def work(operations: Operations) -> list[LimitView]:
        pauses = await operations.pauses()
        if name is None:
            gates = await operations.gates(limit=limit)
        else:
            rules = rules_named(name, await _rules(operations, name))
            gates = [gate for rule in rules for gate in await operations.gates(rule, limit)]
        gates = [gate for gate in gates[:limit] if _is_shown(gate)]
        return [
            _view(gate, pauses) for gate in sorted([*gates, *_stopped(gates, pauses)], key=_key)
        ]

    found = frame.ask(work)
    if as_json:
        answer(found)
    elif found:
        table(_HEAD, [_row(view) for view in found], right=("held", "waiting"))
    elif name is None:
        say("no limit or rate is known: a worker whose tasks have one tells of it when it starts")
    else:
        say(f"no limit or rate of {name} is known")


def _key(gate: Gate) -> str:
    return gate.key


def _is_shown(gate: Gate) -> bool:
    """Pools have a command of their own; what was lifted is of interest while somebody is there."""
    return gate.kind != "pool" and (gate.kind != "open" or bool(gate.held or gate.waiting))


def _stopped(gates: list[Gate], pauses: tuple[Pause, ...]) -> list[Gate]:
    """Tokens that are paused, although nobody holds them or waits for them now."""
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
        each_token=by_token(gate),
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
    words += ["everybody: the limit was lifted"] if view.kind == "open" else []
    words += ["each token"] if view.each_token else []
    words += ["imposed"] if view.imposed else []
    return ", ".join(words)


def _rate(count: int, period: float) -> str:
    """As it is declared: ``200/m``."""
    return f"{count}/{_UNITS.get(period, f'{period:g}s')}"


# --- change ----------------------------------------------------------------------------------


@command(name="set", context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="TASK|LIMIT")
@click.argument("number", metavar="N")
def set_limit(frame: CommandContext, name: str, number: str, as_json: bool) -> None:
    """Let N jobs run at once, whatever the code says, until it is reset.

    What runs goes on. With 0 nothing starts. A limit with tokens is set for each of them.

    \b
    umbel -A tasks limits set tasks.mail 3
    umbel -A tasks limits set limit:tasks.mail/tenant 1
    """
    if not re.fullmatch(r"[0-9]{1,10}", number) or int(number) > _MOST:
        raise click.UsageError(
            f"N: {number[:80]!r}: give a whole number from 0 to {_MOST:,}, without commas."
        )
    _change(frame, name, int(number), as_json)


@command()
@click.argument("name", metavar="TASK|LIMIT")
def reset(frame: CommandContext, name: str, as_json: bool) -> None:
    """Give the code its say again on how many jobs run at once."""
    _change(frame, name, None, as_json)


def _change(frame: CommandContext, name: str, capacity: int | None, as_json: bool) -> None:
    app = frame.app_or_bare

    async def work(operations: Operations) -> tuple[str, Gate | None]:
        rule = await _one(app, operations, name)
        if not await operations.impose(rule, capacity):
            raise Failure(f"{rule} is gone: no worker's code has it any more")
        found = [gate for gate in await operations.gates(rule) if gate.kind == "limit"]
        return rule, found[0] if found else None

    rule, gate = frame.ask(work)
    allowed = gate.capacity if gate is not None else capacity
    if as_json:
        answer({"limit": rule, "capacity": allowed, "imposed": capacity is not None})
    else:
        each = " for each token" if gate is not None and by_token(gate) else ""
        whose = "as the code says" if capacity is None else "imposed"
        say(f"{rule}: {allowed:,} at once{each}, {whose}" if allowed is not None else rule)


async def _one(app: Umbel, operations: Operations, name: str) -> str:
    """The limit that is meant. Raises UsageError, Failure: it is none, or several are."""
    if TOKEN in name:
        raise click.UsageError(
            f"{name}: a limit is the same for each token. Set {rule_of(name)}, or stop this one:"
            f" umbel pause --gate {name}"
        )
    rules = await _rules(operations, name)
    limits = [rule for rule, kind in rules.items() if kind == "limit"]
    found = rules_named(name, limits)
    if len(found) == 1:
        return found[0]
    if found:
        raise click.UsageError(f"{name!r} is {' and '.join(found)}: write the whole of one.")
    if other := rules_named(name, [rule for rule, kind in rules.items() if kind == "rate"]):
        raise click.UsageError(
            f"{name!r} is {other[0]}, a rate: only limits can be set. Change the rate in the code,"
            f" or stop it: umbel pause --gate {other[0]}"
        )
    if declared := rules_named(name, _declared(app)):
        raise Failure(
            f"{declared[0]} is not in the store yet: a worker tells of it when it starts;"
            " start one, then set it"
        )
    known = f"there is {', '.join(limits[:10])}" if limits else "no task has one: declare limit="
    raise Failure(f"no limit {name!r} is known; {known}")


async def _rules(operations: Operations, name: str) -> dict[str, str]:
    """Rules that the store knows, with their kinds."""
    # One that is behind the first thousand gates is found by its whole name.
    gates = [*await operations.gates(), *await operations.gates(rule_of(name))]
    return {rule_of(gate.key): gate.kind for gate in gates}


def _declared(app: Umbel) -> Collection[str]:
    every = [*(task.gating for task in app.registry), *app.registry.queue_gates.values()]
    return sorted({name for gating in every for name in gating.limits})


for _command in (list_limits, set_limit, reset):
    limits.add_command(_command)
