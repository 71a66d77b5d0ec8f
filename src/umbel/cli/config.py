"""``umbel config``: the settings, the options of tasks from a file, and the origin of each."""

from __future__ import annotations

import os
from typing import Any

from umbel.app import Umbel
from umbel.cli.command_context import CommandContext, command
from umbel.cli.output import print_json, print_line, print_table
from umbel.configuration import Settings


@command()
def config(context: CommandContext, as_json: bool) -> None:
    """Show the settings and the origin of each. Passwords, tokens and keys are masked.

    Also shows the options of tasks that the configuration file sets.
    """
    app = context.app_or_bare
    shown = {
        name: {"value": value, "from": _origin(app, name)}
        for name, value in app.settings.public().items()
    }
    tasks = {
        task.name: {
            option: {"value": _plain(getattr(task.declared, option)), "from": origin}
            for option, origin in app.task_tables.origins(task.name).items()
        }
        for task in app.registry
    }
    if as_json:
        print_json(shown | {"tasks": {name: options for name, options in tasks.items() if options}})
        return
    rows = [(name, _text(one["value"]), one["from"]) for name, one in shown.items()]
    print_table(("setting", "value", "from"), rows)
    found = [
        (name, option, one["from"], _text(one["value"]))
        for name, options in tasks.items()
        for option, one in options.items()
    ]
    if found:
        print_line()
        print_table(("task", "option", "from", "value"), found)


def _origin(app: Umbel, name: str) -> str:
    value = getattr(app.settings, name)
    from_environment = Settings.resolve({}, os.environ)
    variable = next((v for v in _variables(name) if os.environ.get(v)), None)
    if variable is not None and getattr(from_environment, name) == value:
        return variable
    if variable is None and name in app.config_file.settings:
        from_file = Settings.resolve({}, {}, app.config_file)
        if getattr(from_file, name) == value:
            return app.config_file.source
    return "default" if value == getattr(Settings(), name) else "application"


def _variables(name: str) -> tuple[str, ...]:
    own = f"UMBEL_{name.upper()}"
    return ("UMBEL_URL", own) if name == "broker" else (own,)


def _plain(value: Any) -> Any:
    """Return the value of an option as JSON can have it: a policy as text."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return value if isinstance(value, int | float | str) else str(value)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{one}={text}" for one, text in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
