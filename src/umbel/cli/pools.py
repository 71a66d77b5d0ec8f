"""``umbel pools [list] | add | remove | drain | ready``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import click
import msgspec

from umbel.app import Umbel
from umbel.backends import PoolMember
from umbel.cli.answers import answer, say, table
from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.errors import Failure
from umbel.cli.words import count
from umbel.operations import Operations, PoolView
from umbel.tasks import Pool

_HEAD = ("pool", "waiting", "member", "fence", "condition")

Act = Callable[[Operations], Callable[[str, Sequence[str]], Awaitable[list[str]]]]


@group()
def pools(frame: CommandContext, as_json: bool) -> None:
    """Show pools and who holds what; add, remove and drain members."""
    _show(frame, None, as_json)


@command(name="list")
@click.argument("pool", required=False)
def list_pools(frame: CommandContext, pool: str | None, as_json: bool) -> None:
    """Every pool with its members, or one of them."""
    _show(frame, pool, as_json)


def _show(frame: CommandContext, pool: str | None, as_json: bool) -> None:
    found = frame.ask(lambda operations: operations.pools())
    if pool is not None:
        chosen = [view for view in found if view.name == pool]
        if not chosen:
            raise _unknown_pool(pool, [view.name for view in found])
        found = chosen
    if as_json:
        answer(found)
    elif found:
        table(_HEAD, [row for view in found for row in _rows(view)], right=("waiting", "fence"))
    else:
        say("no pool is known: a worker whose code has app.pool(...) tells of it when it starts")


def _rows(view: PoolView) -> list[tuple[object, ...]]:
    """One for each member; how many wait is said once."""
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
    words += [f"held by {member.job}"] if member.job else []
    words += ["paused"] if paused else []
    return ", ".join(words)


# --- change ----------------------------------------------------------------------------------


@command()
@click.argument("pool")
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@click.option("--data", metavar="JSON", help="What jobs find in current.lease.data: an object.")
def add(
    frame: CommandContext, pool: str, names: tuple[str, ...], data: str | None, as_json: bool
) -> None:
    """Add members to POOL, also such as were removed. They stay when workers start anew.

    A member that is there already gets the new data, if there is any.

    \b
    umbel -A tasks pools add executors http://c --data '{"port": 3}'
    """
    app, given = frame.app_or_bare, _object(data)
    Pool("checked", names)  # says what is wrong with a name

    async def work(operations: Operations) -> None:
        known = sorted({*app.registry.pools(), *(view.name for view in await operations.pools())})
        if pool not in known:
            raise _unknown_pool(pool, known)
        there = {member.name: member.data for member in await operations.members(pool)}
        kept = {name: there.get(name, {}) if given is None else given for name in names}
        await operations.enrol(pool, kept)

    frame.ask(work)
    if as_json:
        answer({"pool": pool, "state": "added", "members": names})
    else:
        say(f"{', '.join(names)} added to pool {pool}")


def _object(text: str | None) -> dict[str, Any] | None:
    """A member's data. Raises UsageError when some store could not keep it."""
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
def remove(frame: CommandContext, pool: str, names: tuple[str, ...], as_json: bool) -> None:
    """Take members out of POOL, also such as the code names. Who holds one keeps it to the end."""
    _act(frame, pool, names, "removed", lambda operations: operations.dismiss, as_json)


@command()
@click.argument("pool")
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
def drain(frame: CommandContext, pool: str, names: tuple[str, ...], as_json: bool) -> None:
    """Hand members of POOL out no more. Who holds one keeps it to the end."""
    _act(frame, pool, names, "drained", lambda operations: operations.drain, as_json)


@command()
@click.argument("pool")
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
def ready(frame: CommandContext, pool: str, names: tuple[str, ...], as_json: bool) -> None:
    """Hand members of POOL out again that were drained, or failed their check."""
    _act(frame, pool, names, "ready", lambda operations: operations.ready, as_json)


def _act(
    frame: CommandContext, pool: str, names: tuple[str, ...], word: str, act: Act, as_json: bool
) -> None:
    app = frame.app_or_bare

    async def work(operations: Operations) -> list[PoolMember]:
        known = {member.name: member for member in await operations.members(pool)}
        await _check(app, operations, pool, names, sorted(known))
        done = await act(operations)(pool, names)
        leaving = [name for name in names if name not in done]
        if leaving and word != "removed":
            raise Failure(
                f"{', '.join(leaving)} of pool {pool}: removed, and gone when the job that holds"
                f" it has ended; to keep it: umbel pools add {pool} {leaving[0]}"
            )
        return [known[name] for name in dict.fromkeys(names)]

    members = frame.ask(work)
    if as_json:
        answer({"pool": pool, "state": word, "members": [member.name for member in members]})
        return
    for member in members:
        held = f"; job {member.job} keeps it to the end" if member.job and word != "ready" else ""
        say(f"{member.name} of pool {pool} {'is ready' if word == 'ready' else word}{held}")


async def _check(
    app: Umbel, operations: Operations, pool: str, names: Sequence[str], known: list[str]
) -> None:
    """Raises Failure: there is no such pool or member. Nothing is changed then."""
    missing = [name for name in dict.fromkeys(names) if name not in known]
    if not missing:
        return
    pools = {*app.registry.pools(), *(view.name for view in await operations.pools())}
    if pool not in pools:
        raise _unknown_pool(pool, sorted(pools))
    has = f"it has {_some(known)}" if known else "it has none"
    raise Failure(f"pool {pool} has no member {', '.join(missing)}; {has}")


def _unknown_pool(pool: str, known: list[str]) -> Failure:
    there = f"there is {_some(known)}" if known else "none is declared here"
    return Failure(f"no pool {pool!r} is known; {there}. Declare one with app.pool(...)")


def _some(names: list[str]) -> str:
    return ", ".join(names[:20]) + (" …" if len(names) > 20 else "")


for _command in (list_pools, add, remove, drain, ready):
    pools.add_command(_command)
