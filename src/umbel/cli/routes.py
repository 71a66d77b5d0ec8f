"""``umbel routes [list] | show | release | move``."""

from __future__ import annotations

import time

import click

from umbel.backends import Route, WorkerIndex
from umbel.cli.command_context import CommandContext, command, group
from umbel.cli.errors import Failure
from umbel.cli.formatting import count, local_time, relative_time
from umbel.cli.output import print_json, print_line, print_table
from umbel.operations import Operations

_HEAD = ("key", "worker", "jobs", "made", "state")
_LIMIT = click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True)


@group()
def routes(context: CommandContext, as_json: bool) -> None:
    """Show which worker has which key; release and move routes."""
    _show(context, None, 100, as_json)


@command(name="list")
@click.option("--index", type=click.IntRange(0, 999_999), help="Only routes to this worker.")
@_LIMIT
def list_routes(context: CommandContext, index: int | None, limit: int, as_json: bool) -> None:
    """List live routes, the newest first."""
    _show(context, index, limit, as_json)


def _show(context: CommandContext, index: int | None, limit: int, as_json: bool) -> None:
    async def work(operations: Operations) -> tuple[list[Route], list[WorkerIndex]]:
        return await operations.routes(index=index, limit=limit), await operations.worker_indexes()

    found, worker_indexes = context.run(work)
    if as_json:
        print_json(found)
    elif found:
        names = {one.index: one.worker for one in worker_indexes}
        rows = [
            (
                one.key,
                f"{one.index} ({names.get(one.index, '?')})",
                one.held,
                relative_time(one.made, time.time()),
                _state(one),
            )
            for one in found
        ]
        print_table(_HEAD, rows, right=("jobs",))
    else:
        print_line("No key has a route. The first job of a task with affinity=... makes one.")


@command()
@click.argument("key")
@_LIMIT
def show(context: CommandContext, key: str, limit: int, as_json: bool) -> None:
    """Show the route of KEY and its earlier ones, each with the workers it was chosen from."""
    found = context.run(lambda operations: operations.routes(key=key, live=False, limit=limit))
    if not found:
        raise Failure(f"key {key!r} has never had a route; see umbel routes")
    if as_json:
        print_json(found)
        return
    for one in found:
        loads = ", ".join(f"worker {index} had {routes}" for index, routes in one.among)
        until = f"until {local_time(one.released)} ({one.why})" if one.released else _state(one)
        print_line(f"worker {one.index} from {local_time(one.made)} {until}; routes then: {loads}")


@command()
@click.argument("keys", metavar="KEY…", nargs=-1, required=True)
@click.option("--reason", default="", help="Reason, for the history of the route.")
def release(context: CommandContext, keys: tuple[str, ...], reason: str, as_json: bool) -> None:
    """End routes, at once or when their running jobs have ended. Waiting jobs get a new route."""
    _change(context, keys, None, reason or "by an operator", as_json)


@command()
@click.argument("key")
@click.argument("index", type=click.IntRange(0, 999_999))
@click.option("--reason", default="", help="Reason, for the history of the route.")
def move(context: CommandContext, key: str, index: int, reason: str, as_json: bool) -> None:
    """Move KEY to the worker with INDEX when its running jobs have ended."""
    _change(context, (key,), index, reason or f"moved to {index}", as_json)


def _change(
    context: CommandContext, keys: tuple[str, ...], index: int | None, why: str, as_json: bool
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

    done = context.run(work)
    unknown = [key for key, route in done if route is None]
    if as_json:
        print_json([route for _, route in done if route is not None])
    else:
        for key, route in done:
            if route is not None:
                at = f"worker {route.index}"
                later = f"will be released from {at} after {count(route.held, 'running job')}"
                print_line(f"{key}: {later if route.closing else f'released from {at}'}")
    if unknown:
        raise Failure(f"{', '.join(unknown)}: no live route; see umbel routes")


async def _check(operations: Operations, index: int) -> None:
    worker_indexes = await operations.worker_indexes()
    if not any(one.index == index and one.alive and not one.retiring for one in worker_indexes):
        running = ", ".join(
            str(one.index) for one in worker_indexes if one.alive and not one.retiring
        )
        raise Failure(f"no running worker has index {index}; known indexes: {running or 'none'}")


def _state(route: Route) -> str:
    return f"closing ({route.why})" if route.closing else "live"


for _command in (list_routes, show, release, move):
    routes.add_command(_command)
