"""Asking before something cannot be undone."""

from __future__ import annotations

import sys

import click

from umbel.terminal import visible


def consent(question: str, yes: bool) -> None:
    """Go on only with ``--yes`` or an answer. Raises UsageError where nobody can answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Say so with --yes.")
    click.confirm(visible(question, lines=False), abort=True, err=True)
