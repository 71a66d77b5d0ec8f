"""Asks for confirmation of what cannot be undone."""

from __future__ import annotations

import sys

import click

from umbel.terminal import make_visible


def require_confirmation(question: str, yes: bool) -> None:
    """Return if ``--yes`` is given or the user agrees; abort otherwise.

    Raises UsageError without a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Confirm with --yes.")
    click.confirm(make_visible(question, lines=False), abort=True, err=True)
