"""Asks for confirmation of what cannot be undone."""

from __future__ import annotations

import sys

import click

from umbel.cli.output import print_note
from umbel.terminal import make_visible


def require_name(question: str, name: str, yes: bool) -> None:
    """Return if ``--yes`` is given or the user types the name; abort otherwise.

    Raises UsageError without a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Confirm with --yes.")
    print_note(f"{question} Type {name} to confirm:")
    typed = sys.stdin.readline().strip()
    if typed != name:
        raise click.UsageError(f"{typed!r:.80} is not {name!r}; nothing was deleted.")


def require_confirmation(question: str, yes: bool) -> None:
    """Return if ``--yes`` is given or the user agrees; abort otherwise.

    Raises UsageError without a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Confirm with --yes.")
    click.confirm(make_visible(question, lines=False), abort=True, err=True)
