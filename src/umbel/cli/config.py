"""``umbel config``: the settings and the origin of each."""

from __future__ import annotations

import os
from typing import Any

from umbel.cli.command_context import CommandContext, command
from umbel.cli.output import print_json, print_table
from umbel.configuration import Settings


@command()
def config(context: CommandContext, as_json: bool) -> None:
    """Show the settings and the origin of each. Passwords, tokens and keys are masked."""
    settings = context.app_or_bare.settings
    shown = {
        name: {"value": value, "from": _origin(settings, name)}
        for name, value in settings.public().items()
    }
    if as_json:
        print_json(shown)
    else:
        rows = [(name, _text(one["value"]), one["from"]) for name, one in shown.items()]
        print_table(("setting", "value", "from"), rows)


def _origin(settings: Settings, name: str) -> str:
    value = getattr(settings, name)
    from_environment = Settings.resolve({}, os.environ)
    variable = next((v for v in _variables(name) if os.environ.get(v)), None)
    if variable is not None and getattr(from_environment, name) == value:
        return variable
    return "default" if value == getattr(Settings(), name) else "application"


def _variables(name: str) -> tuple[str, ...]:
    own = f"UMBEL_{name.upper()}"
    return ("UMBEL_URL", own) if name == "broker" else (own,)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{one}={text}" for one, text in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
