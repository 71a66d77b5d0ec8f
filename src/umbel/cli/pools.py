"""``umbel pools [list] | add | remove | drain | ready``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import click
import msgspec

from umbel.app import Umbel
from umbel.backends import PoolMember
from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.errors import Failure
from umbel.cli.formatting import count
from umbel.cli.output import print_json, print_line, print_table
from umbel.cli.short_names import short_id
from umbel.operations import Operations, PoolView
from umbel.tasks import Pool

_HEAD = ("pool", "waiting", "member", "fence", "condition")

Act = Callable[[Operations], Callable[[str, Sequence[str]], Awaitable[list[str]]]]


@group()
def pools(context: CommandContext, as_json: bool) -> None:
    """Show pools and the jobs that hold their members; add, remove and drain members."""
    _show(context, None, as_json)


@command(name="list")
@click.argument("pool", required=False)
def list_pools(context: CommandContext, pool: str | None, as_json: bool) -> None:
    """List every pool with its members, or only POOL."""
    _show(context, pool, as_json)


def _show(context: CommandContext, pool: str | None, as_json: bool) -> None:
    found = context.run(lambda operations: operations.pools())
    if pool is not None:
        chosen = [view for view in found if view.name == pool]
        if not chosen:
            raise _unknown_pool(pool, [view.name for view in found])
        found = chosen
    if as_json:
        print_json(found)
    elif found:
        print_table(
            _HEAD, [row for view in found for row in _rows(view)], right=("waiting", "fence")
        )
    else:
        print_line("There are no pools. A worker declares the pools of its code when it starts.")


def _rows(view: PoolView) -> list[tuple[object, ...]]:
    """Return a row for each member; the first one has the number of waiting jobs."""
    if not view.members:
        condition = "no member, paused" if view.paused else "no member"
        return [(view.name, f"{view.waiting:,}", "", "", condition)]
    return [
        (
            view.name,
            "" if place else f"{view.waiting:,}",
            member.name,
            member.fence,
            _condition(member, view.paused),
        )
        for place, member in enumerate(view.members)
    ]


def _condition(member: PoolMember, paused: bool) -> str:
    words: list[str] = []
    if member.failures:
        words.append(f"{member.condition}: {count(member.failures, 'check')} failed")
    elif member.condition != "ready" or not member.job:
        words.append(member.condition)
    words += [f"held by {short_id(member.job)}"] if member.job else []
    words += ["paused"] if paused else []
    return ", ".join(words)


# --- change ----------------------------------------------------------------------------------


@command()
@click.argument("pool")
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@click.option("--data", metavar="JSON", help="JSON object that jobs find in current.lease.data.")
def add(
    context: CommandContext, pool: str, names: tuple[str, ...], data: str | None, as_json: bool
) -> None:
    """Add members to POOL, or add removed ones again. They remain when workers restart.

    A member that exists already gets the new data, if any is given.

    \b
    umbel -A tasks pools add executors http://c --data '{"port": 3}'
    """
    app, given = context.app_or_bare, _object(data)
    Pool("checked", names)  # raises for a wrong name

    async def work(operations: Operations) -> None:
        known = sorted({*app.registry.pools(), *(view.name for view in await operations.pools())})
        if pool not in known:
            raise _unknown_pool(pool, known)
        there = {member.name: member.data for member in await operations.members(pool)}
        kept = {name: there.get(name, {}) if given is None else given for name in names}
        await operations.add_members(pool, kept)

    context.run(work)
    if as_json:
        print_json({"pool": pool, "state": "added", "members": names})
    else:
        print_line(f"{', '.join(names)} added to pool {pool}")


def _object(text: str | None) -> dict[str, Any] | None:
    """Return the data of a member. Raises UsageError for data that a store cannot keep."""
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
        again = msgspec.json.encode(found)
    except (msgspec.MsgspecError, RecursionError, OverflowError) as error:
        raise click.UsageError(f"--data: give a JSON object: {error}") from None
    if b"\\u0000" in again:
        raise click.UsageError("--data: give a JSON object without \\u0000.")
    return found


@command()
@click.argument("pool")
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
def remove(context: CommandContext, pool: str, names: tuple[str, ...], as_json: bool) -> None:
    """Remove members from POOL, also those in the code. A job that holds one keeps it."""
    _act(context, pool, names, "removed", lambda operations: operations.remove_members, as_json)


@command()
@click.argument("pool")
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
def drain(context: CommandContext, pool: str, names: tuple[str, ...], as_json: bool) -> None:
    """Stop giving members of POOL to new jobs. A job that holds one keeps it until it ends."""
    _act(context, pool, names, "drained", lambda operations: operations.drain, as_json)


@command()
@click.argument("pool")
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
def ready(context: CommandContext, pool: str, names: tuple[str, ...], as_json: bool) -> None:
    """Use members of POOL again that were drained or failed their check."""
    _act(context, pool, names, "ready", lambda operations: operations.ready, as_json)


def _act(
    context: CommandContext, pool: str, names: tuple[str, ...], word: str, act: Act, as_json: bool
) -> None:
    app = context.app_or_bare

    async def work(operations: Operations) -> list[PoolMember]:
        known = {member.name: member for member in await operations.members(pool)}
        await _check(app, operations, pool, names, sorted(known))
        done = await act(operations)(pool, names)
        leaving = [name for name in names if name not in done]
        if leaving and word != "removed":
            raise Failure(
                f"{', '.join(leaving)} of pool {pool} is removed and only exists until the job that"
                f" holds it ends. To keep it: umbel pools add {pool} {leaving[0]}"
            )
        return [known[name] for name in dict.fromkeys(names)]

    members = context.run(work)
    if as_json:
        print_json({"pool": pool, "state": word, "members": [member.name for member in members]})
        return
    for member in members:
        held = (
            f"; job {member.job} keeps it until it ends" if member.job and word != "ready" else ""
        )
        print_line(f"{member.name} of pool {pool} {'is ready' if word == 'ready' else word}{held}")


async def _check(
    app: Umbel, operations: Operations, pool: str, names: Sequence[str], known: list[str]
) -> None:
    """Raise Failure, before anything is changed, if there is no such pool or member."""
    missing = [name for name in dict.fromkeys(names) if name not in known]
    if not missing:
        return
    pools = {*app.registry.pools(), *(view.name for view in await operations.pools())}
    if pool not in pools:
        raise _unknown_pool(pool, sorted(pools))
    has = f"its members: {_list_some(known)}" if known else "it has no members"
    raise Failure(f"pool {pool} has no member {', '.join(missing)}; {has}")


def _unknown_pool(pool: str, known: list[str]) -> Failure:
    there = f"known pools: {_list_some(known)}" if known else "no pool is declared here"
    return Failure(f"there is no pool {pool!r}; {there}. Declare one with app.pool(...)")


def _list_some(names: list[str]) -> str:
    return ", ".join(names[:20]) + (" …" if len(names) > 20 else "")


for _command in (list_pools, add, remove, drain, ready):
    pools.add_command(_command)
