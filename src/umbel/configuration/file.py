"""The configuration file: settings, and options of tasks by name or pattern. Read, not checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from umbel.errors import ConfigurationError

DEFAULT_FILE = "umbel.toml"
VARIABLE = "UMBEL_CONFIG"


class ConfigFile(msgspec.Struct, frozen=True):
    """The content of a configuration file; empty if there is none."""

    source: str = DEFAULT_FILE
    """How errors name the file: its name, or the variable with its path."""
    settings: Mapping[str, Any] = {}
    tasks: Mapping[str, Any] = {}
    """The tables below ``tasks``, by the name of a task or a pattern."""


def read_config_file(environment: Mapping[str, str]) -> ConfigFile:
    """Return the file that UMBEL_CONFIG names, otherwise ``umbel.toml`` in the current folder.

    Raises:
        ConfigurationError: UMBEL_CONFIG names no file, or a file cannot be read.
    """
    named = environment.get(VARIABLE)
    path, source = Path(named or DEFAULT_FILE), f"{VARIABLE}={named}" if named else DEFAULT_FILE
    if not named and not os.path.lexists(path):
        return ConfigFile()
    import tomllib  # imported only where there is a file

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(
            f"{source}: {error.strerror}; give the path of a TOML file"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{source}: this is not TOML: {error}") from None
    tasks = content.pop("tasks", {})
    if not isinstance(tasks, dict):
        raise ConfigurationError(f'{source}: tasks: give tables, as in [tasks."mail.*"]')
    return ConfigFile(source, content, tasks)
