"""Asking before something cannot be undone."""

from __future__ import annotations

import sys

import click


def consent(question: str, yes: bool) -> None:
    """Go on only with ``--yes`` or an answer. Raises UsageError where nobody can answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Say so with --yes.")
    click.confirm(question, abort=True, err=True)
