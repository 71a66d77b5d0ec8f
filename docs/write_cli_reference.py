"""Writes ``reference/cli.md`` from the real commands: ``python docs/write_cli_reference.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from umbel.cli.entry import cli

PAGE = Path(__file__).parent / "reference" / "cli.md"
WIDTH = 88

HEAD = """\
# Command line

This page is the `--help` of every command. `python docs/write_cli_reference.py` writes it.

Write `-A` before the command. It gives the module of your application: `-A shop`, or
`-A shop:tasks` if the application is not called `app`. `UMBEL_APP` does the same. `umbel worker`,
`umbel dev`, and `umbel workflows show`, `draw` and `start` need it. For all other commands
`UMBEL_URL` is enough. They then do not know your tasks: `umbel send`, for example, takes any name
and checks no arguments.

Every command has `--json`. Results go to standard output, errors to standard error. With `--json`,
errors are JSON, too.

| exit code | meaning |
|---|---|
| 0 | Success. |
| 1 | The command failed, or nothing was found. |
| 2 | Wrong usage or configuration: a wrong option, a wrong argument, no such application. |
| 3 | The server cannot be reached. |
| 4 | Another deployment is in progress, has taken over, or has ended this one. |
| 75 | A worker ended itself: jobs waited, slots were free, and a new connection did not help. |
| 129, 143 | `umbel deploy begin` was stopped by SIGHUP or SIGTERM. |
| 130 | The command was stopped with Ctrl-C. |
"""


def page() -> str:
    """The whole page."""
    root = click.Context(cli, info_name="umbel", terminal_width=WIDTH, **cli.context_settings)
    return "\n".join([HEAD, *(_section(*found) for found in _commands(cli, root, 2))])


def _commands(
    command: click.Command, context: click.Context, level: int
) -> Iterator[tuple[click.Command, click.Context, int]]:
    yield command, context, level
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            deeper = level if context.parent is None else 3
            yield from _commands(
                inner, click.Context(inner, info_name=name, parent=context), deeper
            )


def _section(command: click.Command, context: click.Context, level: int) -> str:
    title = f"{'#' * level} {context.command_path}"
    return f"{title}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
