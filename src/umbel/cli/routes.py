"""``umbel routes [list] | show | release | move``."""

from __future__ import annotations

import time

import click

from umbel.backends import Route, Seat
from umbel.cli.answers import answer, say, table
from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.errors import Failure
from umbel.cli.words import ago, clock, count
from umbel.operations import Operations

_HEAD = ("key", "worker", "jobs", "made", "state")
_LIMIT = click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True)


@group()
def routes(frame: CommandContext, as_json: bool) -> None:
    """Show which worker has which key; release and move routes."""
    _show(frame, None, 100, as_json)


@command(name="list")
@click.option("--index", type=click.IntRange(0, 999_999), help="Only those of this worker.")
@_LIMIT
def list_routes(frame: CommandContext, index: int | None, limit: int, as_json: bool) -> None:
    """Live routes, the newest first."""
    _show(frame, index, limit, as_json)


def _show(frame: CommandContext, index: int | None, limit: int, as_json: bool) -> None:
    async def work(operations: Operations) -> tuple[list[Route], list[Seat]]:
        return await operations.routes(index=index, limit=limit), await operations.seats()

    found, seats = frame.ask(work)
    if as_json:
        answer(found)
    elif found:
        names = {seat.index: seat.worker for seat in seats}
        rows = [
            (
                one.key,
                f"{one.index} ({names.get(one.index, '?')})",
                one.held,
                ago(one.made, time.time()),
                _state(one),
            )
            for one in found
        ]
        table(_HEAD, rows, right=("jobs",))
    else:
        say("no key has a route: the first job of a task with affinity=... makes one")


@command()
@click.argument("key")
@_LIMIT
def show(frame: CommandContext, key: str, limit: int, as_json: bool) -> None:
    """The route of KEY and those it had before, each with what it was chosen among."""
    found = frame.ask(lambda operations: operations.routes(key=key, live=False, limit=limit))
    if not found:
        raise Failure(f"key {key!r} never had a route; see umbel routes")
    if as_json:
        answer(found)
        return
    for one in found:
        others = ", ".join(f"{index} had {many}" for index, many in one.among)
        until = f"until {clock(one.released)} ({one.why})" if one.released else _state(one)
        say(f"worker {one.index} from {clock(one.made)} {until}; chosen as {others}")


@command()
@click.argument("keys", metavar="KEY…", nargs=-1, required=True)
@click.option("--reason", default="", help="Kept in the route's history.")
def release(frame: CommandContext, keys: tuple[str, ...], reason: str, as_json: bool) -> None:
    """End routes: at once, or when what runs by them is done. What waits goes on by a new one."""
    _tell(frame, keys, None, reason or "by an operator", as_json)


@command()
@click.argument("key")
@click.argument("index", type=click.IntRange(0, 999_999))
@click.option("--reason", default="", help="Kept in the route's history.")
def move(frame: CommandContext, key: str, index: int, reason: str, as_json: bool) -> None:
    """Move KEY to the worker with INDEX, when what runs by it is done."""
    _tell(frame, (key,), index, reason or f"moved to {index}", as_json)


def _tell(
    frame: CommandContext, keys: tuple[str, ...], index: int | None, why: str, as_json: bool
) -> None:
    async def work(operations: Operations) -> list[tuple[str, Route | None]]:
        if index is not None:
            await _check(operations, index)
        return [
            (
                key,
                await operations.release(key, why)
                if index is None
                else await operations.move_route(key, index, why),
            )
            for key in keys
        ]

    done = frame.ask(work)
    unknown = [key for key, route in done if route is None]
    if as_json:
        answer([route for _, route in done if route is not None])
    else:
        for key, route in done:
            if route is not None:
                at = f"worker {route.index}"
                later = f"released when what runs on {at} is done: {count(route.held, 'job')}"
                say(f"{key}: {later if route.closing else f'released from {at}'}")
    if unknown:
        raise Failure(f"{', '.join(unknown)}: no live route; see umbel routes")


async def _check(operations: Operations, index: int) -> None:
    seats = await operations.seats()
    if not any(seat.index == index and seat.alive and not seat.retiring for seat in seats):
        living = ", ".join(str(seat.index) for seat in seats if seat.alive and not seat.retiring)
        raise Failure(f"no worker has index {index}; there is {living or 'none'}")


def _state(route: Route) -> str:
    return f"to be released ({route.why})" if route.closing else "live"


for _command in (list_routes, show, release, move):
    routes.add_command(_command)
