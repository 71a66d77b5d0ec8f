"""``umbel top``: queues, workers and tasks, live in a terminal."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys

import click

from umbel.cli.command_context import CommandContext, command
from umbel.cli.operator import operator_name
from umbel.cli.output import on_terminal, print_json, print_line
from umbel.operations import Operations


@command()
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two reads.",
)
@click.option("--ascii", "ascii_only", is_flag=True, help="Use no symbols beyond ASCII.")
@click.option("--no-color", is_flag=True, help="Use no colors; also NO_COLOR.")
@click.option("--once", is_flag=True, help="Print the screen once and exit.")
def top(
    context: CommandContext,
    interval: float,
    ascii_only: bool,
    no_color: bool,
    once: bool,
    as_json: bool,
) -> None:
    """Show queues, workers, and the slowest and failing tasks, live.

    Enter opens the jobs of a row, a job, its traceback. Keys pause, retry and cancel; they ask
    first. ? shows all keys, q quits. Needs 80x24 characters, no mouse and no colors.
    """
    from umbel.top import Frame, Glyphs, Screen, Snapshot, Wanted, draw, read_snapshot, run_top

    app, address = context.app_or_bare, context.address or "MODULE:APP"
    title = f"{app.settings.namespace} on {app.settings.public()['broker']}"
    glyphs = Glyphs(ascii_only or not _is_unicode())

    async def read(operations: Operations) -> Snapshot:
        return await read_snapshot(operations, Wanted(), address)

    if as_json:
        print_json(context.run(read).overview)
        return
    is_dumb = os.environ.get("TERM", "dumb") == "dumb"
    if once or is_dumb or not on_terminal() or not sys.stdin.isatty():
        snapshot = context.run(read)
        columns, lines = shutil.get_terminal_size()
        frame = Frame(columns, lines, title, interval)
        drawn = [line.plain.rstrip() for line in draw(Screen(glyphs), snapshot, frame, app.codec)]
        for line in "\n".join(drawn[:-1]).rstrip().split("\n"):
            print_line(line)
        return
    asyncio.run(
        run_top(
            app,
            Screen(glyphs),
            title=title,
            address=address,
            user=operator_name(),
            seconds=interval,
            color=not no_color and not os.environ.get("NO_COLOR"),
        )
    )


def _is_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
