"""Options of a server's URL, read with errors that say what to write instead."""

from __future__ import annotations

from umbel.errors import ConfigurationError


def parse_flag(name: str, value: str) -> bool:
    """Return whether the option is true. Raise ConfigurationError if it is neither."""
    if value not in ("true", "false"):
        raise ConfigurationError(f"{name}={value!r}: give true or false")
    return value == "true"


def parse_seconds(name: str, value: str, lowest: float = 0.01, highest: float = 3600) -> float:
    """Return the seconds of the option. Raise ConfigurationError for anything else."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not lowest <= seconds <= highest:
        raise ConfigurationError(f"{name}={value!r}: give seconds from {lowest:g} to {highest:g}")
    return seconds
